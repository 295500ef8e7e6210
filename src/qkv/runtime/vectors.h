// Vectors of float32 for C kernels: as wide as the registers of the machine.

#pragma once
#include <math.h>
#include <stdint.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

INLINE Vector where(Ints condition, Vector x, Vector y) {
    return (Vector)(((Ints)x & condition) | ((Ints)y & ~condition));
}

INLINE Vector exponential(Vector x) { // of x <= 0; relative error below 2e-7
    Ints tiny = x < -87.0f;
    Vector t = where(tiny, (Vector){0}, x) * 1.44269504f + 12582912.0f; // 1.5 * 2^23: rounds to an integer
    Vector n = t - 12582912.0f;
    Vector r = x - n * 0.693145752f - n * 1.42860677e-6f;
    Vector p = 1.98756915e-4f * r + 1.39819995e-3f;
    p = p * r + 8.33345205e-3f;
    p = p * r + 4.16657953e-2f;
    p = p * r + 1.66666657e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    Vector power = (Vector)(((Ints)t - 0x4B400000 + 127) << 23); // 2^n
    return where(tiny, (Vector){0}, p * power);
}

INLINE float to_float(uint16_t x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}

INLINE uint16_t to_bfloat16(float x) { // rounds to nearest, ties to even
    union { float value; uint32_t bits; } u = {x};
    uint32_t rounded = (u.bits + 0x7FFF + (u.bits >> 16 & 1)) >> 16;
    return x != x ? 0x7FC0 : rounded;
}

typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// LANES elements from index i on of an array of bfloat16 or float32, which need not be aligned.

INLINE Vector load(const void *from, int64_t i, int bfloat16) {
    if (!bfloat16) return *(const Floats *)((const float *)from + i);
    const Halves *halves = (const Halves *)((const uint16_t *)from + i);
#ifdef __AVX512F__ // some compilers convert half a vector at a time
    return (Vector)((Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)halves)) << 16);
#else
    return (Vector)(__builtin_convertvector(*halves, Words) << 16);
#endif
}

INLINE void store(void *to, int64_t i, int bfloat16, Vector x) {
    if (!bfloat16) {
        *(Floats *)((float *)to + i) = x;
        return;
    }
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i *)((uint16_t *)to + i), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    Words bits = (Words)x, rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; // to nearest, ties to even
    Words invalid = (Words)(x != x);
    *(Halves *)((uint16_t *)to + i) = __builtin_convertvector((rounded & ~invalid) | (0x7FC0 & invalid), Halves);
#endif
}
