"""A recording for other tools: Perfetto traces, one offline HTML page, CSV tables."""
