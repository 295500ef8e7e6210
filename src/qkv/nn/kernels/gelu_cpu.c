// GELU on CPUs, x Phi(x), or its approximation with a tanh, together with its derivative.
//
//   Phi(x) = 1/2 + 1/2 erf(x / sqrt(2)),   or Phi(x) = 1/2 + 1/2 tanh(u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
//   d/dx x Phi(x) = Phi(x) + x Phi'(x)
//
// Arrays are float32 or bfloat16, the computation is in float32. Compiled by `qkv.runtime.c_library` on first use.

#include "vectors.h"
#include <string.h>

#define CHUNK 4096 // elements at a time; a multiple of LANES

typedef struct {
    int64_t bfloat16, tanh_form;
    const char *x;
    char *y, *derivative;
} Gelu;

// Phi(x), and Phi'(x) in `density`. The error of erf is below 2e-7 (Abramowitz and Stegun 1964, 7.1.26).
INLINE Vector probability(Vector x, int tanh_form, Vector *density) {
    if (tanh_form) {
        Vector u = x * (0.797884561f + 0.0356774081f * x * x);
        Ints negative = u < 0.0f;
        Vector e = exponential(where(negative, 2 * u, -2 * u)); // in (0, 1]
        Vector p = 1.0f / (1.0f + e), q = e * p;                // of |u| and of -|u|
        *density = 2 * p * q * (0.797884561f + 0.107032224f * x * x);
        return where(negative, q, p);
    }
    Ints negative = x < 0.0f;
    Vector size = where(negative, -x, x), e = exponential(-0.5f * x * x);
    Vector t = 1.0f / (1.0f + 0.231641887f * size); // 0.3275911 / sqrt(2)
    Vector tail = (((0.530702714f * t - 0.726576013f) * t + 0.710706871f) * t - 0.142248368f) * t + 0.127414796f;
    tail = tail * t * e;
    *density = 0.398942280f * e;
    return where(negative, tail, 1.0f - tail);
}

INLINE void vectors(const Gelu *g, int64_t begin, int64_t end, int bfloat16, int tanh_form) {
    for (int64_t i = begin; i < end; i += LANES) {
        Vector x = load(g->x, i, bfloat16), density, p = probability(x, tanh_form, &density);
        store(g->y, i, bfloat16, x * p);
        store(g->derivative, i, bfloat16, p + x * density);
    }
}

static void chunk(const Gelu *g, int64_t begin, int64_t end) {
    if (g->bfloat16 && g->tanh_form) vectors(g, begin, end, 1, 1);
    else if (g->bfloat16) vectors(g, begin, end, 1, 0);
    else if (g->tanh_form) vectors(g, begin, end, 0, 1);
    else vectors(g, begin, end, 0, 0);
}

// The last elements, fewer than LANES.
static void rest(const Gelu *g, int64_t begin, int64_t count) {
    float x[LANES] = {0}, y[LANES], derivative[LANES];
    int64_t size = g->bfloat16 ? 2 : 4;
    Gelu last = {g->bfloat16, g->tanh_form, (char *)x, (char *)y, (char *)derivative};
    memcpy(x, g->x + begin * size, count * size);
    chunk(&last, 0, LANES);
    memcpy(g->y + begin * size, y, count * size);
    memcpy(g->derivative + begin * size, derivative, count * size);
}

// y = gelu(x) and its derivative, of n elements.
void qkv_gelu(const void *x, void *y, void *derivative, int64_t n, int64_t bfloat16, int64_t tanh_form,
        int64_t threads) {
    Gelu g = {bfloat16, tanh_form, x, y, derivative};
    int64_t whole = n / LANES * LANES;
#pragma omp parallel for num_threads(threads) if (n > 4 * CHUNK)
    for (int64_t begin = 0; begin < whole; begin += CHUNK)
        chunk(&g, begin, begin + CHUNK < whole ? begin + CHUNK : whole);
    if (whole < n) rest(&g, whole, n - whole);
}
