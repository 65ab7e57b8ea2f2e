"""What a kernel is for, by its name: a table of patterns, the user's own first.

A user's table is a TOML file, ``kernels.toml`` in sgtop's configuration folder::

    [[category]]
    name = "attention"
    patterns = ["my_company_attn", "paged_.*_v7"]

Patterns are regular expressions, searched in the demangled name, letter case ignored; the first that matches wins.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same library, before it came into Python
    import tomli as tomllib

OTHER = "other"

DEFAULT: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Order matters: what names two things is what stands first.
    (
        "communication",
        (
            r"nccl", r"all_?reduce", r"all_?gather", r"reduce_?scatter", r"all_?to_?all", r"\bsendrecv", r"nvshmem",
            r"deep_?ep::", r"internode|intranode", r"symm_mem", r"multimem", r"cross_device_reduce", r"mscclpp",
            r"one_?shot|two_?shot",
        ),
    ),
    (
        "moe",
        (
            r"moe", r"grouped_?gemm|group_?gemm|GroupProblemShape", r"topk_?gating|topkGating|gating_softmax",
            r"biased_grouped_topk|grouped_topk", r"expert", r"ep_scatter|ep_gather|permute_?tokens|count_and_sort",
        ),
    ),
    (
        "attention",
        (
            r"flash_?(fwd|attn|infer.*(prefill|decode))|flash::|FlashAttn",
            r"fmha|\bmha\b|\bmla\b|mla_|_mla|flashmla",
            r"attention|_attn|attn_", r"BatchPrefill|BatchDecode|SinglePrefill|SingleDecode|PagedKV|PagedParams",
            r"merge_?state|VariableLengthMergeStates|PersistentVariableLength", r"splitkv|split_kv",
            r"_fwd_kernel|_fwd_grouped_kernel_stage|_decode_.*_stage[12]", r"sparse_?indexer|indexer_logits|mqa_logits",
            r"mamba|ssm|ssd_|chunk_scan|causal_conv1d|gated_delta|linear_attn|lightning",
        ),
    ),
    (
        "kv cache",
        (
            r"store_?(kv_?)?cache|set_?(mla_)?kv_buffer|reshape_and_cache|append_paged|assign_req_to_token|req_to_token|kv_indices",
            r"write_req_to_token|transfer_kv|page_table|alloc_(extend|decode)",
        ),
    ),
    ("rope", (r"rope|rotary|RotateHalf|ApplyRope|BatchQKApplyRotary",)),
    ("norm", (r"rms_?norm|layer_?norm|norm_kernel|group_?norm|FusedAddRMS|qk_?norm|\bnorm::",)),
    (
        "sampling",
        (
            r"sampl|top_?k|top_?p|min_?p|argmax|ArgMax|softmax|SoftMax|multinomial|exponential|distribution_|philox",
            r"radix_?sort|RadixSort|sort_|bitonic|cumsum|scan_by|vocab|logits?_|penal|gumbel|eagle|verify_tree|build_tree",
        ),
    ),
    (
        "quantisation",
        (r"quant|dequant|fp8_?(scale|cast)|per_token_group|per_tensor_scale|nvfp4_|cvt_fp|scaled_cast|amax",),
    ),
    (
        "gemm",
        (
            r"gemm|gemv|GEMV|matmul|cutlass|cublas|\bxmma|sm\d+_x?mma|wgmma|nvjet|deep_?gemm|dot_kernel|splitK|split_k|\bmm_",
            r"_bmm|bmm_|machete|marlin|linear_kernel|ampere_|hopper_|_sm90_|_sm100_",
        ),
    ),
    ("activation", (r"silu|gelu|act_and_mul|swiglu|relu|sigmoid|activation|tanh",)),
    (
        "embedding",
        (r"embedding|indexSelect|index_select|gather|take_along|vectorized_gather|index_elementwise|indexFunc",),
    ),
    (
        "copy",
        (r"^mem(cpy|set)|copy|Memcpy|CatArray|cat_|transpose|fill|memset|index_put|scatter|arange|contiguous",),
    ),
    (
        "elementwise",
        (r"elementwise|pointwise|reduce_kernel|reduce_|triton_(poi|red|per)|add_|mul_|compare|where|clamp|bitwise",),
    ),
)  # fmt: skip
"""Category → patterns."""


class TableError(ValueError):
    """A user's table that cannot be used; the text says where and why."""


Table = list[tuple[str, "re.Pattern[str]"]]


def compile_table(rows: Iterable[tuple[str, Iterable[str]]]) -> Table:
    """One pattern a category, in order.

    Raises:
        TableError: a pattern that is no regular expression.
    """
    out: Table = []
    for name, patterns in rows:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as e:
                raise TableError(f"category {name!r}: {pattern!r} is not a regular expression: {e}")
        out.append((name, re.compile("|".join(f"(?:{p})" for p in patterns), re.IGNORECASE)))
    return out


def load(path: Path) -> Table:
    """A user's table from a TOML file.

    Raises:
        TableError: it cannot be read, is no TOML, or has entries that are not as documented.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise TableError(f"{path}: {e}")
    rows: list[tuple[str, list[str]]] = []
    entries = data.get("category", [])
    if not isinstance(entries, list):
        raise TableError(f"{path}: category must be a list of tables, [[category]]")
    for n, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        patterns = entry.get("patterns") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            raise TableError(f"{path}: category {n} needs a name and a list of patterns (strings)")
        if patterns:
            rows.append((name, patterns))
    try:
        return compile_table(rows)
    except TableError as e:
        raise TableError(f"{path}: {e}")


class Categories:
    """Category by kernel name; the user's table is asked before sgtop's."""

    def __init__(self, user: Table | None = None) -> None:
        self._table = [*(user or []), *compile_table(DEFAULT)]

    def of(self, name: str) -> str:
        """The category of a demangled kernel name; ``other`` when nothing fits."""
        for category, pattern in self._table:
            if pattern.search(name):
                return category
        return OTHER
