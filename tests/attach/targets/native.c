/* What a target's main thread does in C while it is borrowed: arithmetic in vector registers, malloc, dlopen, waiting. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

double float_loop(long n) {
  double a = 1.0, b = 0.5, c = 0.25, d = 0.125;
  for (long i = 0; i < n; i++) {
    a = a * 1.0000001 + b;
    b = b * 0.9999999 + c;
    c = c * 1.0000002 + d;
    d = d * 0.9999998 + 1e-9;
  }
  return a + b + c + d;
}

void malloc_loop(long n) {
  void *held[16] = {0};
  unsigned s = 12345;
  for (long i = 0; i < n; i++) {
    s = s * 1103515245 + 12345;
    int k = (s >> 8) & 15;
    free(held[k]);
    held[k] = malloc(16 + ((s >> 12) & 8191));
    ((char *)held[k])[0] = 1;
  }
  for (int i = 0; i < 16; i++) free(held[i]);
}

void dlopen_loop(const char *one, const char *other, long n) {
  for (long i = 0; i < n; i++) {
    void *handle = dlopen((i & 1) ? one : other, RTLD_NOW);
    if (handle) dlclose(handle);
  }
}

void spin_ms(long ms) {
  struct timespec t0, t;
  clock_gettime(CLOCK_MONOTONIC, &t0);
  do {
    clock_gettime(CLOCK_MONOTONIC, &t);
  } while ((t.tv_sec - t0.tv_sec) * 1000 + (t.tv_nsec - t0.tv_nsec) / 1000000 < ms);
}
