// Decoding kernels for CPUs: a stack of Transformer layers over a batch of tokens, in one call.
//
// Each token belongs to a row (a sequence) and has a position. Its keys and values are written to the cache of its row;
// it attends to `lengths[i]` cached tokens. `table[row][t]` is the row whose cache holds token t of `row`: beams that
// share a prefix share its cache, and reordering them copies a row of the table. Activations are float32; weights are
// float32, bfloat16, or int8 with one scale per output (activations are then quantized per token).
//
// Compiled by `library.py` on first use, with -march=native. Without AVX-512, plain loops are used.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(QKV_PORTABLE)
#define VECTOR 1
#include <immintrin.h>
#endif

#define PANEL 64 // outputs per panel of packed weights
#define LANES 16
#define ROWS 6 // tokens per register tile

enum { F32 = 0, BF16 = 1, I8 = 2 };
enum { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4, TANH = 5 };

typedef struct {
    int64_t dtype, outputs, inputs;
    void *weight;       // [panels][inputs / group][PANEL][group], group = 1, 2 or 4 inputs; int8 is stored plus 128
    const float *scale; // [outputs] of int8 weights
    const float *bias;  // [outputs] or null
} Linear;

typedef struct {
    const float *weight, *bias; // weight null: no normalization; bias null: RMS normalization
} Norm;

typedef struct {
    Norm attention_norm, cross_norm, ffn_norm;
    Linear qkv, out, cross_query, cross_out, up, down;
    float scale, cross_scale; // of the dot products
} Layer;

typedef struct {
    int64_t dim, heads, head_dim, ffn_dim, layers, positions, vocab_size;
    int64_t pre_norm, activation, cross, half_cache;
    int64_t kv_heads;           // heads of keys and values of self-attention, each shared by heads / kv_heads heads
    int64_t gated;              // whether the first half of the outputs of `up` are gates of the second
    float eps, embed_scale;
    const float *embed;         // [vocab_size, dim], or null: rows of the packed readout
    const float *position;      // [positions, dim] or null
    const float *rotation;      // [positions, head_dim]: cosines, then sines of rotary positions; or null
    Norm final_norm;
    Linear readout;
    Layer *layer;
} Stack;

typedef struct {
    void *keys, *values; // [layers][rows][kv_heads][capacity][head_dim], float32 or float16
    int64_t rows, capacity;
} Cache;

// ---------------------------------------------------------------------------------------------------- threads

typedef struct {
    volatile int64_t arrived, phase;
    int64_t threads;
} Barrier;

static void barrier(Barrier *b) {
    if (b->threads == 1) return;
    int64_t phase = __atomic_load_n(&b->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == b->threads) {
        b->arrived = 0;
        __atomic_store_n(&b->phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t spins = 0; __atomic_load_n(&b->phase, __ATOMIC_ACQUIRE) == phase; spins++) {
        if (spins < 20000) {
#ifdef VECTOR
            _mm_pause();
#endif
        } else {
            extern int sched_yield(void);
            sched_yield();
        }
    }
}

static void share(int64_t count, int64_t thread, int64_t threads, int64_t *begin, int64_t *end) {
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

// ---------------------------------------------------------------------------------------------------- conversions

static inline float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 64); // NaN
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static void cache_store(void *to, int64_t offset, const float *x, int64_t n, int half) {
    if (!half) {
        memcpy((float *)to + offset, x, n * sizeof(float));
        return;
    }
    _Float16 *out = (_Float16 *)to + offset;
    for (int64_t i = 0; i < n; i++) {
        float value = x[i] > 65504.f ? 65504.f : x[i] < -65504.f ? -65504.f : x[i];
        out[i] = (_Float16)value;
    }
}

// ---------------------------------------------------------------------------------------------------- vector math

#ifdef VECTOR
static inline __m512 exp512(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.3f)), _mm512_set1_ps(88.7f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.f)));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 load_cache(const void *from, int64_t offset, int half) {
    return half ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)from + offset)))
                : _mm512_loadu_ps((const float *)from + offset);
}
#endif

static inline float activate(float x, int64_t kind) {
    switch (kind) {
    case RELU: return x > 0.f ? x : 0.f;
    case GELU: return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
    case GELU_TANH: return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case SILU: return x / (1.f + expf(-x));
    case TANH: return tanhf(x);
    default: return x;
    }
}

#ifdef VECTOR
static inline __m512 activate512(__m512 x, int64_t kind) {
    const __m512 one = _mm512_set1_ps(1.f);
    switch (kind) {
    case NONE: return x;
    case RELU: return _mm512_max_ps(x, _mm512_setzero_ps());
    case GELU_TANH: { // x sigmoid(2 u),  u = sqrt(2 / pi) (x + 0.044715 x^3)
        __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
        __m512 u = _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x), _mm512_set1_ps(-1.5957691216057308f));
        return _mm512_div_ps(x, _mm512_add_ps(one, exp512(u)));
    }
    case SILU: return _mm512_div_ps(x, _mm512_add_ps(one, exp512(_mm512_sub_ps(_mm512_setzero_ps(), x))));
    default: {
        float values[LANES];
        _mm512_storeu_ps(values, x);
        for (int i = 0; i < LANES; i++) values[i] = activate(values[i], kind);
        return _mm512_loadu_ps(values);
    }
    }
}
#endif

// out = normalize(x); out may be x.
static void normalize(float *out, const float *x, Norm norm, int64_t dim, float eps) {
    if (!norm.weight) {
        if (out != x) memcpy(out, x, dim * sizeof(float));
        return;
    }
    float mean = 0.f, variance = 0.f;
    if (!norm.bias) {
#pragma omp simd reduction(+ : variance)
        for (int64_t i = 0; i < dim; i++) variance += x[i] * x[i];
        float scale = 1.f / sqrtf(variance / dim + eps);
#pragma omp simd
        for (int64_t i = 0; i < dim; i++) out[i] = x[i] * scale * norm.weight[i];
        return;
    }
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < dim; i++) mean += x[i];
    mean /= dim;
#pragma omp simd reduction(+ : variance)
    for (int64_t i = 0; i < dim; i++) variance += (x[i] - mean) * (x[i] - mean);
    float inverse = 1.f / sqrtf(variance / dim + eps);
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) out[i] = (x[i] - mean) * inverse * norm.weight[i] + norm.bias[i];
}

// Rotate the pairs (x_i, x_{i + dim/2}) by the angles of a position, in place.
static void rotate(float *x, const float *rotation, int64_t dim) {
    const int64_t half = dim / 2;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float first = x[i], second = x[half + i];
        x[i] = first * rotation[i] - second * rotation[half + i];
        x[half + i] = first * rotation[half + i] + second * rotation[i];
    }
}

// ---------------------------------------------------------------------------------------------------- linear layers

static inline int64_t group_of(int64_t dtype) { return dtype == F32 ? 1 : dtype == BF16 ? 2 : 4; }
static inline int64_t padded(int64_t inputs, int64_t group) { return (inputs + group - 1) / group * group; }

// Bytes of the packed weights of a linear layer.
int64_t qkv_packed_bytes(int64_t dtype, int64_t outputs, int64_t inputs) {
    int64_t group = group_of(dtype), size = dtype == F32 ? 4 : dtype == BF16 ? 2 : 1;
    return (outputs + PANEL - 1) / PANEL * PANEL * padded(inputs, group) * size;
}

// Pack rows of weights [outputs, inputs] (float32, bfloat16 or int8, as packed) into panels.
void qkv_pack(int64_t dtype, const void *weight, int64_t outputs, int64_t inputs, void *packed) {
    int64_t group = group_of(dtype), panels = (outputs + PANEL - 1) / PANEL, groups = padded(inputs, group) / group;
#pragma omp parallel for
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t column = 0; column < PANEL; column++) {
            int64_t output = panel * PANEL + column;
            for (int64_t input = 0; input < groups * group; input++) {
                int64_t to = ((panel * groups + input / group) * PANEL + column) * group + input % group;
                int valid = output < outputs && input < inputs;
                int64_t from = output * inputs + input;
                if (dtype == F32) ((float *)packed)[to] = valid ? ((const float *)weight)[from] : 0.f;
                else if (dtype == BF16) ((uint16_t *)packed)[to] = valid ? ((const uint16_t *)weight)[from] : 0;
                else ((uint8_t *)packed)[to] = (uint8_t)((valid ? ((const int8_t *)weight)[from] : 0) + 128);
            }
        }
}

// Row `output` of packed weights as float32: the embedding of a token if embedding and output layer are tied.
static void unpack_row(const Linear *linear, int64_t output, float *row) {
    int64_t group = group_of(linear->dtype), groups = padded(linear->inputs, group) / group;
    int64_t panel = output / PANEL, column = output % PANEL;
    for (int64_t input = 0; input < linear->inputs; input++) {
        int64_t from = ((panel * groups + input / group) * PANEL + column) * group + input % group;
        if (linear->dtype == F32) row[input] = ((float *)linear->weight)[from];
        else if (linear->dtype == BF16) row[input] = from_bf16(((uint16_t *)linear->weight)[from]);
        else row[input] = (float)((int)((uint8_t *)linear->weight)[from] - 128) * linear->scale[output];
    }
}

typedef struct {
    void *values;         // [tokens, padded inputs] float32, bfloat16 or int8
    float *scale;         // [tokens] of int8
    int32_t *correction;  // [tokens] 128 * sum of int8 values
} Input;

// Convert a token's activations to the input type of a linear layer.
static void prepare(const Linear *linear, Input input, int64_t token, const float *x) {
    int64_t inputs = linear->inputs, width = padded(inputs, group_of(linear->dtype));
    if (linear->dtype == F32) {
        memcpy((float *)input.values + token * width, x, inputs * sizeof(float));
    } else if (linear->dtype == BF16) {
        uint16_t *out = (uint16_t *)input.values + token * width;
        int64_t i = 0;
#if defined(VECTOR) && defined(__AVX512BF16__)
        for (; i + LANES <= inputs; i += LANES)
            _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
#endif
        for (; i < inputs; i++) out[i] = to_bf16(x[i]);
        for (; i < width; i++) out[i] = 0;
    } else {
        int8_t *out = (int8_t *)input.values + token * width;
        float largest = 0.f;
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < inputs; i++) largest = fmaxf(largest, fabsf(x[i]));
        float scale = largest > 0.f ? largest / 127.f : 1.f, inverse = 1.f / scale;
        int32_t sum = 0;
        int64_t i = 0;
#ifdef VECTOR
        __m512i total = _mm512_setzero_si512();
        for (; i + LANES <= inputs; i += LANES) {
            __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
            total = _mm512_add_epi32(total, q);
            _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtsepi32_epi8(q));
        }
        sum = _mm512_reduce_add_epi32(total);
#endif
        for (; i < inputs; i++) {
            out[i] = (int8_t)lrintf(x[i] * inverse);
            sum += out[i];
        }
        for (; i < width; i++) out[i] = 0;
        input.scale[token] = scale;
        input.correction[token] = 128 * sum;
    }
}

// Write outputs [begin, begin + 64) of one token: activate(value + bias) + residual.
static inline void finish(const Linear *linear, int64_t panel, const float *value, int64_t activation,
                          const float *residual, float *out) {
    for (int64_t column = 0; column < PANEL; column++) {
        int64_t output = panel * PANEL + column;
        if (output >= linear->outputs) return;
        float y = value[column] + (linear->bias ? linear->bias[output] : 0.f);
        y = activate(y, activation);
        out[output] = residual ? residual[output] + y : y;
    }
}

#ifdef VECTOR
#define UNROLL _Pragma("GCC unroll 6") // of every loop over accumulators, so that they stay in registers
#define INLINE static inline __attribute__((always_inline))

// Write the sums of a tile: activate(sums + bias) + residual.
INLINE void finish_tile(const Linear *linear, int64_t panel, int64_t first, const int rows, __m512 sums[ROWS][4],
                        int64_t activation, const float *residual, float *out) {
    if ((panel + 1) * PANEL <= linear->outputs) {
        UNROLL for (int r = 0; r < rows; r++) {
            int64_t to = (first + r) * linear->outputs + panel * PANEL;
            UNROLL for (int c = 0; c < 4; c++) {
                __m512 y = sums[r][c];
                if (linear->bias) y = _mm512_add_ps(y, _mm512_loadu_ps(linear->bias + panel * PANEL + c * LANES));
                if (activation) y = activate512(y, activation);
                if (residual) y = _mm512_add_ps(y, _mm512_loadu_ps(residual + to + c * LANES));
                _mm512_storeu_ps(out + to + c * LANES, y);
            }
        }
        return;
    }
    float value[PANEL];
    UNROLL for (int r = 0; r < rows; r++) {
        int64_t to = (first + r) * linear->outputs;
        UNROLL for (int c = 0; c < 4; c++) _mm512_storeu_ps(value + c * LANES, sums[r][c]);
        finish(linear, panel, value, activation, residual ? residual + to : 0, out + to);
    }
}

// Fetch the weights that are used in about 16 iterations.
INLINE void prefetch(const void *w) {
    UNROLL for (int line = 0; line < 4; line++) _mm_prefetch((const char *)w + 4096 + 64 * line, _MM_HINT_T0);
}

#ifdef __AVX512VNNI__
// acc += w . a in groups of four; as an instruction, because compilers spill the accumulators of the intrinsic.
#define DOT_INT8(acc, w, a) __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(a))

INLINE void tile_int8(const Linear *linear, Input input, int64_t panel, int64_t first, const int rows,
                      int64_t activation, const float *residual, float *out) {
    const int64_t groups = padded(linear->inputs, 4) / 4;
    const uint8_t *w = (const uint8_t *)linear->weight + panel * groups * PANEL * 4;
    const int8_t *x = (const int8_t *)input.values + first * groups * 4;
    __m512i acc[ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < 4; c++) acc[r][c] = _mm512_setzero_si512();
    for (int64_t g = 0; g < groups; g++, w += 4 * PANEL) {
        __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        __m512i w2 = _mm512_loadu_si512(w + 128), w3 = _mm512_loadu_si512(w + 192);
        prefetch(w);
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + (r * groups + g) * 4, 4);
            __m512i a = _mm512_set1_epi32(four);
            DOT_INT8(acc[r][0], w0, a);
            DOT_INT8(acc[r][1], w1, a);
            DOT_INT8(acc[r][2], w2, a);
            DOT_INT8(acc[r][3], w3, a);
        }
    }
    __m512 sums[ROWS][4];
    UNROLL for (int c = 0; c < 4; c++) {
        int64_t left = linear->outputs - panel * PANEL - c * LANES;
        __mmask16 mask = left >= LANES ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        __m512 scale = _mm512_maskz_loadu_ps(mask, linear->scale + panel * PANEL + c * LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            __m512i sum = _mm512_sub_epi32(acc[r][c], _mm512_set1_epi32(input.correction[first + r]));
            sums[r][c] = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(input.scale[first + r])), scale);
        }
    }
    finish_tile(linear, panel, first, rows, sums, activation, residual, out);
}
#endif

#ifdef __AVX512BF16__
INLINE void tile_bfloat16(const Linear *linear, Input input, int64_t panel, int64_t first, const int rows,
                          int64_t activation, const float *residual, float *out) {
    const int64_t groups = padded(linear->inputs, 2) / 2;
    const uint16_t *w = (const uint16_t *)linear->weight + panel * groups * PANEL * 2;
    const uint16_t *x = (const uint16_t *)input.values + first * groups * 2;
    __m512 sums[ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < 4; c++) sums[r][c] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, w += 2 * PANEL) {
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + 32);
        __m512bh w2 = (__m512bh)_mm512_loadu_si512(w + 64), w3 = (__m512bh)_mm512_loadu_si512(w + 96);
        prefetch(w);
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t two;
            memcpy(&two, x + (r * groups + g) * 2, 4);
            __m512bh a = (__m512bh)_mm512_set1_epi32(two);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], w0, a);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], w1, a);
            sums[r][2] = _mm512_dpbf16_ps(sums[r][2], w2, a);
            sums[r][3] = _mm512_dpbf16_ps(sums[r][3], w3, a);
        }
    }
    finish_tile(linear, panel, first, rows, sums, activation, residual, out);
}
#endif

INLINE void tile_float32(const Linear *linear, Input input, int64_t panel, int64_t first, const int rows,
                         int64_t activation, const float *residual, float *out) {
    const int64_t groups = linear->inputs;
    const float *w = (const float *)linear->weight + panel * groups * PANEL;
    const float *x = (const float *)input.values + first * groups;
    __m512 sums[ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < 4; c++) sums[r][c] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, w += PANEL) {
        __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 16);
        __m512 w2 = _mm512_loadu_ps(w + 32), w3 = _mm512_loadu_ps(w + 48);
        prefetch(w);
        UNROLL for (int r = 0; r < rows; r++) {
            __m512 a = _mm512_set1_ps(x[r * groups + g]);
            sums[r][0] = _mm512_fmadd_ps(w0, a, sums[r][0]);
            sums[r][1] = _mm512_fmadd_ps(w1, a, sums[r][1]);
            sums[r][2] = _mm512_fmadd_ps(w2, a, sums[r][2]);
            sums[r][3] = _mm512_fmadd_ps(w3, a, sums[r][3]);
        }
    }
    finish_tile(linear, panel, first, rows, sums, activation, residual, out);
}

// All tokens of the panels [begin, end): one function per type, or the compiler runs out of registers.
#define PANELS(name, tile)                                                                                             \
    static __attribute__((noinline)) void name(const Linear *linear, Input input, int64_t tokens, int64_t activation,  \
                                               const float *residual, float *out, int64_t begin, int64_t end) {        \
        for (int64_t panel = begin; panel < end; panel++) {                                                            \
            int64_t token = 0;                                                                                         \
            for (; token + ROWS <= tokens; token += ROWS) tile(linear, input, panel, token, 6, activation, residual, out); \
            switch (tokens - token) {                                                                                  \
            case 5: tile(linear, input, panel, token, 5, activation, residual, out); break;                            \
            case 4: tile(linear, input, panel, token, 4, activation, residual, out); break;                            \
            case 3: tile(linear, input, panel, token, 3, activation, residual, out); break;                            \
            case 2: tile(linear, input, panel, token, 2, activation, residual, out); break;                            \
            case 1: tile(linear, input, panel, token, 1, activation, residual, out); break;                            \
            }                                                                                                          \
        }                                                                                                              \
    }

PANELS(panels_float32, tile_float32)
#ifdef __AVX512VNNI__
PANELS(panels_int8, tile_int8)
#endif
#ifdef __AVX512BF16__
PANELS(panels_bfloat16, tile_bfloat16)
#endif
#endif

static void plain_tile(const Linear *linear, Input input, int64_t panel, int64_t token, int64_t activation,
                       const float *residual, float *out) {
    int64_t dtype = linear->dtype, group = group_of(dtype), groups = padded(linear->inputs, group) / group;
    float value[PANEL] = {0};
    if (dtype == I8) {
        const uint8_t *w = (const uint8_t *)linear->weight + panel * groups * PANEL * 4;
        const int8_t *x = (const int8_t *)input.values + token * groups * 4;
        int32_t sums[PANEL] = {0};
        for (int64_t g = 0; g < groups; g++)
            for (int c = 0; c < PANEL; c++)
                for (int k = 0; k < 4; k++) sums[c] += (int32_t)w[(g * PANEL + c) * 4 + k] * x[g * 4 + k];
        for (int c = 0; c < PANEL && panel * PANEL + c < linear->outputs; c++)
            value[c] = (float)(sums[c] - input.correction[token]) * input.scale[token] * linear->scale[panel * PANEL + c];
    } else if (dtype == BF16) {
        const uint16_t *w = (const uint16_t *)linear->weight + panel * groups * PANEL * 2;
        const uint16_t *x = (const uint16_t *)input.values + token * groups * 2;
        for (int64_t g = 0; g < groups; g++)
            for (int c = 0; c < PANEL; c++)
                for (int k = 0; k < 2; k++) value[c] += from_bf16(w[(g * PANEL + c) * 2 + k]) * from_bf16(x[g * 2 + k]);
    } else {
        const float *w = (const float *)linear->weight + panel * groups * PANEL;
        const float *x = (const float *)input.values + token * groups;
        for (int64_t g = 0; g < groups; g++)
            for (int c = 0; c < PANEL; c++) value[c] += w[g * PANEL + c] * x[g];
    }
    finish(linear, panel, value, activation, residual ? residual + token * linear->outputs : 0,
           out + token * linear->outputs);
}

// This thread's share of out = activate(input W^T + bias) + residual, for all tokens.
static void apply(const Linear *linear, Input input, int64_t tokens, int64_t activation, const float *residual,
                  float *out, int64_t thread, int64_t threads) {
    int64_t begin, end;
    share((linear->outputs + PANEL - 1) / PANEL, thread, threads, &begin, &end);
#ifdef VECTOR
    if (linear->dtype == F32) {
        panels_float32(linear, input, tokens, activation, residual, out, begin, end);
        return;
    }
#ifdef __AVX512VNNI__
    if (linear->dtype == I8) {
        panels_int8(linear, input, tokens, activation, residual, out, begin, end);
        return;
    }
#endif
#ifdef __AVX512BF16__
    if (linear->dtype == BF16) {
        panels_bfloat16(linear, input, tokens, activation, residual, out, begin, end);
        return;
    }
#endif
#endif
    for (int64_t panel = begin; panel < end; panel++)
        for (int64_t token = 0; token < tokens; token++)
            plain_tile(linear, input, panel, token, activation, residual, out);
}

// ---------------------------------------------------------------------------------------------------- attention

#define QUERIES 4 // consecutive tokens of a row whose attention is computed together

typedef struct {
    const Cache *cache;
    const int32_t *table; // row that holds token t, or null: `row` holds all
    int64_t layer, head, heads, head_dim, row;
    int half; // whether the cache is float16
} Keys;

static inline int64_t offset_of(const Keys *keys, int64_t t) {
    int64_t row = keys->table ? keys->table[t] : keys->row;
    return (((keys->layer * keys->cache->rows + row) * keys->heads + keys->head) * keys->cache->capacity + t) * keys->head_dim;
}

#ifdef VECTOR
// Lane i of the result is the sum of the lanes of x[i].
INLINE __m512 sum_each(__m512 x[16]) {
    __m512 a[8], b[4], c[2];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    UNROLL for (int i = 0; i < 4; i++) {
        __m512d low = _mm512_castps_pd(a[2 * i]), high = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    }
    UNROLL for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88), _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

// weights[q * stride + t] = q . k_t for t in [0, length), in blocks of 16 / queries keys; the rows of `weights` have room
// for a whole block.
INLINE void dot_products(const Keys *keys, const float *query, const int queries, int64_t query_stride, int64_t length,
                         float *weights, int64_t stride) {
    const int block = 16 / queries;
    int64_t parts = keys->head_dim / LANES;
    for (int64_t t = 0; t < length; t += block) {
        int64_t offset[16];
        _Pragma("GCC unroll 16") for (int k = 0; k < block; k++) offset[k] = offset_of(keys, t + k < length ? t + k : length - 1);
        __m512 sums[16];
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) sums[i] = _mm512_setzero_ps();
        for (int64_t p = 0; p < parts; p++) {
            __m512 q[4];
            UNROLL for (int i = 0; i < queries; i++) q[i] = _mm512_loadu_ps(query + i * query_stride + p * LANES);
            _Pragma("GCC unroll 16") for (int k = 0; k < block; k++) {
                __m512 key = load_cache(keys->cache->keys, offset[k] + p * LANES, keys->half);
                UNROLL for (int i = 0; i < queries; i++) sums[i * block + k] = _mm512_fmadd_ps(q[i], key, sums[i * block + k]);
            }
        }
        __m512 dots = sum_each(sums);
        if (queries == 1) {
            _mm512_storeu_ps(weights + t, dots);
        } else {
            _mm_storeu_ps(weights + t, _mm512_extractf32x4_ps(dots, 0));
            _mm_storeu_ps(weights + stride + t, _mm512_extractf32x4_ps(dots, 1));
            _mm_storeu_ps(weights + 2 * stride + t, _mm512_extractf32x4_ps(dots, 2));
            _mm_storeu_ps(weights + 3 * stride + t, _mm512_extractf32x4_ps(dots, 3));
        }
    }
}

// Softmax of scale * weights over [0, length); zero up to `end`.
static void softmax(float *weights, float scale, int64_t length, int64_t end) {
    __m512 top = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps(), factor = _mm512_set1_ps(scale);
    for (int64_t t = 0; t < length; t += LANES) {
        __mmask16 mask = length - t >= LANES ? 0xffff : (__mmask16)((1u << (length - t)) - 1);
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, weights + t), factor);
        _mm512_mask_storeu_ps(weights + t, mask, x);
        top = _mm512_mask_max_ps(top, mask, top, x);
    }
    top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
    for (int64_t t = 0; t < length; t += LANES) {
        __mmask16 mask = length - t >= LANES ? 0xffff : (__mmask16)((1u << (length - t)) - 1);
        __m512 p = _mm512_maskz_mov_ps(mask, exp512(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, weights + t), top)));
        _mm512_mask_storeu_ps(weights + t, mask, p);
        total = _mm512_add_ps(total, p);
    }
    float inverse = 1.f / _mm512_reduce_add_ps(total);
    for (int64_t t = 0; t < length; t++) weights[t] *= inverse;
    for (int64_t t = length; t < end; t++) weights[t] = 0.f;
}

INLINE void weighted_sums(const Keys *keys, const float *weights, const int queries, int64_t stride, int64_t length,
                          float *out, int64_t out_stride) {
    int64_t parts = keys->head_dim / LANES;
    for (int64_t first = 0; first < parts; first += 4) {
        const int some = parts - first >= 4 ? 4 : (int)(parts - first);
        __m512 sums[QUERIES][4];
        UNROLL for (int i = 0; i < queries; i++) UNROLL for (int p = 0; p < 4; p++) sums[i][p] = _mm512_setzero_ps();
        for (int64_t t = 0; t < length; t++) {
            int64_t offset = offset_of(keys, t) + first * LANES;
            UNROLL for (int p = 0; p < 4; p++) {
                if (p >= some) break;
                __m512 value = load_cache(keys->cache->values, offset + p * LANES, keys->half);
                UNROLL for (int i = 0; i < queries; i++)
                    sums[i][p] = _mm512_fmadd_ps(_mm512_set1_ps(weights[i * stride + t]), value, sums[i][p]);
            }
        }
        UNROLL for (int i = 0; i < queries; i++) UNROLL for (int p = 0; p < 4; p++)
            if (p < some) _mm512_storeu_ps(out + i * out_stride + (first + p) * LANES, sums[i][p]);
    }
}
#endif

// out_i = sum_t softmax_t(scale q_i . k_t) v_t over the first lengths[i] cached tokens, for `queries` tokens of a row.
// weights[i * stride + t] holds the softmax afterwards.
static __attribute__((noinline)) void attend(const Keys *keys, const float *query, int64_t queries, int64_t query_stride, float scale,
                   const int32_t *lengths, float *weights, int64_t stride, float *out, int64_t out_stride) {
#ifdef VECTOR
    if (keys->head_dim % LANES == 0) {
        int64_t longest = lengths[0];
        for (int64_t i = 1; i < queries; i++) longest = lengths[i] > longest ? lengths[i] : longest;
        if (queries == QUERIES) {
            dot_products(keys, query, QUERIES, query_stride, longest, weights, stride);
            for (int64_t i = 0; i < QUERIES; i++) softmax(weights + i * stride, scale, lengths[i], longest);
            weighted_sums(keys, weights, QUERIES, stride, longest, out, out_stride);
            return;
        }
        for (int64_t i = 0; i < queries; i++) {
            dot_products(keys, query + i * query_stride, 1, 0, lengths[i], weights + i * stride, 0);
            softmax(weights + i * stride, scale, lengths[i], lengths[i]);
            weighted_sums(keys, weights + i * stride, 1, 0, lengths[i], out + i * out_stride, 0);
        }
        return;
    }
#endif
    const int64_t dim = keys->head_dim;
    const float *k32 = keys->cache->keys, *v32 = keys->cache->values;
    const _Float16 *k16 = keys->cache->keys, *v16 = keys->cache->values;
    for (int64_t i = 0; i < queries; i++) {
        const float *q = query + i * query_stride;
        float *w = weights + i * stride, *to = out + i * out_stride, largest = -INFINITY, sum = 0.f;
        for (int64_t t = 0; t < lengths[i]; t++) {
            int64_t offset = offset_of(keys, t);
            float dot = 0.f;
            for (int64_t d = 0; d < dim; d++) dot += q[d] * (keys->half ? (float)k16[offset + d] : k32[offset + d]);
            w[t] = dot * scale;
            largest = fmaxf(largest, w[t]);
        }
        for (int64_t t = 0; t < lengths[i]; t++) sum += w[t] = expf(w[t] - largest);
        for (int64_t d = 0; d < dim; d++) to[d] = 0.f;
        for (int64_t t = 0; t < lengths[i]; t++) {
            int64_t offset = offset_of(keys, t);
            w[t] /= sum;
            for (int64_t d = 0; d < dim; d++) to[d] += w[t] * (keys->half ? (float)v16[offset + d] : v32[offset + d]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- the stack

typedef struct {
    int64_t tokens;
    const int32_t *ids;          // [tokens] token ids, or null: `hidden` has their embeddings
    const int32_t *rows;         // [tokens] row of the cache
    const int32_t *positions;    // [tokens] position in the row
    const int32_t *lengths;      // [tokens] number of cached tokens to attend to, the new ones counted
    const int32_t *table;        // [rows, table_stride] or null: each row has its own tokens
    int64_t table_stride;
    Cache cache;
    Cache memory;                // keys and values of the sources, for cross-attention
    const int32_t *memory_rows;  // [tokens]
    const int32_t *memory_lengths; // [memory rows]
    float *hidden;               // [tokens, dim] output of the stack
    const int32_t *wanted;       // [wanted_count] tokens whose logits are computed
    int64_t wanted_count;
    float *logits;               // [wanted_count, vocab_size]
    float *weights;              // [tokens, layers, heads, memory.capacity] of cross-attention, or null
    float *self_weights;         // [tokens, layers, heads, cache.capacity] of self-attention, or null
} Batch;

static void *allocate(int64_t bytes) {
    void *memory = 0;
    return posix_memalign(&memory, 64, (size_t)(bytes > 64 ? bytes : 64)) ? 0 : memory;
}

static int64_t longest_of(const int32_t *values, int64_t count) {
    int64_t longest = 1;
    for (int64_t i = 0; i < count; i++) longest = values[i] > longest ? values[i] : longest;
    return longest;
}

// Run a batch of tokens through the stack; returns 0, or 1 if memory is missing.
int64_t qkv_run(const Stack *stack, Batch *batch) {
    const int64_t n = batch->tokens, dim = stack->dim, heads = stack->heads, head_dim = stack->head_dim;
    const int64_t widest = stack->ffn_dim > dim ? stack->ffn_dim : dim, up = stack->ffn_dim * (stack->gated ? 2 : 1);
    const int64_t kv_heads = stack->kv_heads, kv_dim = kv_heads * head_dim, width = dim + 2 * kv_dim; // of a row of qkv
    const int64_t threads = omp_get_max_threads(), half = stack->half_cache;
    int64_t longest = longest_of(batch->lengths, n);
    if (stack->cross && batch->memory.capacity > longest) longest = batch->memory.capacity;
    float *x = batch->hidden;
    float *qkv = allocate(n * width * sizeof(float)), *inner = allocate(n * up * sizeof(float));
    const int64_t stride = longest + LANES, per_thread = QUERIES * stride + widest;
    float *attended = allocate(n * dim * sizeof(float)), *scratch = allocate(threads * per_thread * sizeof(float));
    int32_t *group = allocate((n + 1) * sizeof(int32_t)); // first token of each group of up to QUERIES tokens of a row
    Input input = {allocate(n * (widest + 4) * sizeof(float)), allocate(n * sizeof(float)), allocate(n * sizeof(int32_t))};
    int64_t failed = !(qkv && inner && attended && scratch && group && input.values && input.scale && input.correction);
    Barrier sync = {0, 0, 1};
    int64_t groups = 0;
    if (!failed) {
        for (int64_t i = 0; i < n; groups++) {
            group[groups] = (int32_t)i;
            int64_t first = i++;
            while (i < n && i - first < QUERIES && batch->rows[i] == batch->rows[first]) i++;
        }
        group[groups] = (int32_t)n;
#pragma omp parallel num_threads(threads)
        {
            int64_t thread = omp_get_thread_num(), team = omp_get_num_threads(), begin, end, pair_begin, pair_end, store_begin, store_end;
            if (thread == 0) sync.threads = team;
#pragma omp barrier
            float *scores = scratch + thread * per_thread, *row = scores + QUERIES * stride;
            share(n, thread, team, &begin, &end);
            share(n * heads, thread, team, &store_begin, &store_end);
            share(groups * heads, thread, team, &pair_begin, &pair_end);
            for (int64_t i = begin; i < end && batch->ids; i++) {
                float *to = x + i * dim;
                if (stack->embed) memcpy(to, stack->embed + (int64_t)batch->ids[i] * dim, dim * sizeof(float));
                else unpack_row(&stack->readout, batch->ids[i], to);
                const float *position = stack->position ? stack->position + (int64_t)batch->positions[i] * dim : 0;
                for (int64_t d = 0; d < dim; d++) to[d] = to[d] * stack->embed_scale + (position ? position[d] : 0.f);
            }
            const Norm none = {0, 0};
            for (int64_t l = 0; l < stack->layers; l++) {
                const Layer *layer = stack->layer + l;
                // self-attention
                for (int64_t i = begin; i < end; i++) {
                    normalize(row, x + i * dim, stack->pre_norm ? layer->attention_norm : none, dim, stack->eps);
                    prepare(&layer->qkv, input, i, row);
                }
                barrier(&sync);
                apply(&layer->qkv, input, n, NONE, 0, qkv, thread, team);
                barrier(&sync);
                for (int64_t pair = store_begin; pair < store_end; pair++) {
                    int64_t i = pair / heads, head = pair % heads;
                    float *query = qkv + i * width + head * head_dim, *key = query + dim;
                    const float *rotation = stack->rotation ? stack->rotation + batch->positions[i] * head_dim : 0;
                    if (rotation) rotate(query, rotation, head_dim);
                    if (head >= kv_heads) continue;
                    if (rotation) rotate(key, rotation, head_dim);
                    int64_t to = (((l * batch->cache.rows + batch->rows[i]) * kv_heads + head) * batch->cache.capacity +
                                  batch->positions[i]) * head_dim;
                    cache_store(batch->cache.keys, to, key, head_dim, half);
                    cache_store(batch->cache.values, to, key + kv_dim, head_dim, half);
                }
                barrier(&sync);
                for (int64_t pair = pair_begin; pair < pair_end; pair++) {
                    int64_t i = group[pair / heads], count = group[pair / heads + 1] - i, head = pair % heads, r = batch->rows[i];
                    Keys keys = {&batch->cache, batch->table ? batch->table + r * batch->table_stride : 0, l,
                                 head * kv_heads / heads, kv_heads, head_dim, r, (int)half};
                    attend(&keys, qkv + i * width + head * head_dim, count, width, layer->scale, batch->lengths + i,
                           scores, stride, attended + i * dim + head * head_dim, dim);
                    for (int64_t q = 0; q < count && batch->self_weights; q++)
                        memcpy(batch->self_weights + (((i + q) * stack->layers + l) * heads + head) * batch->cache.capacity,
                               scores + q * stride, batch->lengths[i + q] * sizeof(float));
                }
                barrier(&sync);
                for (int64_t i = begin; i < end; i++) prepare(&layer->out, input, i, attended + i * dim);
                barrier(&sync);
                apply(&layer->out, input, n, NONE, x, x, thread, team);
                barrier(&sync);
                // cross-attention
                if (stack->cross) {
                    for (int64_t i = begin; i < end; i++) {
                        if (!stack->pre_norm) normalize(x + i * dim, x + i * dim, layer->attention_norm, dim, stack->eps);
                        normalize(row, x + i * dim, stack->pre_norm ? layer->cross_norm : none, dim, stack->eps);
                        prepare(&layer->cross_query, input, i, row);
                    }
                    barrier(&sync);
                    apply(&layer->cross_query, input, n, NONE, 0, qkv, thread, team);
                    barrier(&sync);
                    for (int64_t pair = pair_begin; pair < pair_end; pair++) {
                        int64_t i = group[pair / heads], count = group[pair / heads + 1] - i, head = pair % heads;
                        int64_t r = batch->memory_rows[i];
                        int32_t source = batch->memory_lengths[r], same[QUERIES] = {source, source, source, source};
                        Keys keys = {&batch->memory, 0, l, head, heads, head_dim, r, (int)half};
                        attend(&keys, qkv + i * dim + head * head_dim, count, dim, layer->cross_scale, same, scores, stride,
                               attended + i * dim + head * head_dim, dim);
                        for (int64_t q = 0; q < count && batch->weights; q++)
                            memcpy(batch->weights + (((i + q) * stack->layers + l) * heads + head) * batch->memory.capacity,
                                   scores + q * stride, source * sizeof(float));
                    }
                    barrier(&sync);
                    for (int64_t i = begin; i < end; i++) prepare(&layer->cross_out, input, i, attended + i * dim);
                    barrier(&sync);
                    apply(&layer->cross_out, input, n, NONE, x, x, thread, team);
                    barrier(&sync);
                }
                // feed-forward network
                for (int64_t i = begin; i < end; i++) {
                    if (!stack->pre_norm)
                        normalize(x + i * dim, x + i * dim, stack->cross ? layer->cross_norm : layer->attention_norm, dim,
                                  stack->eps);
                    normalize(row, x + i * dim, stack->pre_norm ? layer->ffn_norm : none, dim, stack->eps);
                    prepare(&layer->up, input, i, row);
                }
                barrier(&sync);
                apply(&layer->up, input, n, stack->gated ? NONE : stack->activation, 0, inner, thread, team);
                barrier(&sync);
                for (int64_t i = begin; i < end; i++) {
                    float *values = inner + i * up;
                    for (int64_t j = 0; j < stack->ffn_dim && stack->gated; j++)
                        values[j] = activate(values[j], stack->activation) * values[stack->ffn_dim + j];
                    prepare(&layer->down, input, i, values);
                }
                barrier(&sync);
                apply(&layer->down, input, n, NONE, x, x, thread, team);
                barrier(&sync);
                if (!stack->pre_norm)
                    for (int64_t i = begin; i < end; i++)
                        normalize(x + i * dim, x + i * dim, layer->ffn_norm, dim, stack->eps);
            }
            for (int64_t i = begin; i < end; i++) normalize(x + i * dim, x + i * dim, stack->final_norm, dim, stack->eps);
            if (batch->wanted_count) {
                barrier(&sync);
                share(batch->wanted_count, thread, team, &begin, &end);
                for (int64_t i = begin; i < end; i++) prepare(&stack->readout, input, i, x + batch->wanted[i] * dim);
                barrier(&sync);
                apply(&stack->readout, input, batch->wanted_count, NONE, 0, batch->logits, thread, team);
            }
        }
    }
    free(qkv), free(inner), free(attended), free(scratch), free(group), free(input.values), free(input.scale), free(input.correction);
    return failed;
}

// Keys and values of a source for one layer of cross-attention: [tokens, dim] -> memory rows.
int64_t qkv_memory(const Stack *stack, int64_t layer, const Linear *linear, const float *hidden, int64_t tokens,
                   const int32_t *rows, const int32_t *positions, const Cache *memory) {
    int64_t dim = stack->dim, heads = stack->heads, head_dim = stack->head_dim, threads = omp_get_max_threads();
    float *both = allocate(tokens * 2 * dim * sizeof(float));
    Input input = {allocate(tokens * (dim + 4) * sizeof(float)), allocate(tokens * sizeof(float)), allocate(tokens * sizeof(int32_t))};
    int64_t failed = !(both && input.values && input.scale && input.correction);
    if (!failed) {
#pragma omp parallel num_threads(threads)
        {
            int64_t thread = omp_get_thread_num(), team = omp_get_num_threads(), begin, end;
            share(tokens, thread, team, &begin, &end);
            for (int64_t i = begin; i < end; i++) prepare(linear, input, i, hidden + i * dim);
#pragma omp barrier
            apply(linear, input, tokens, NONE, 0, both, thread, team);
#pragma omp barrier
            for (int64_t i = begin; i < end; i++)
                for (int64_t head = 0; head < heads; head++) {
                    int64_t to = (((layer * memory->rows + rows[i]) * heads + head) * memory->capacity + positions[i]) * head_dim;
                    cache_store(memory->keys, to, both + i * 2 * dim + head * head_dim, head_dim, (int)stack->half_cache);
                    cache_store(memory->values, to, both + i * 2 * dim + dim + head * head_dim, head_dim, (int)stack->half_cache);
                }
        }
    }
    free(both), free(input.values), free(input.scale), free(input.correction);
    return failed;
}

// A single linear layer: out [tokens, outputs] = x [tokens, inputs] W^T + bias + residual (or null).
int64_t qkv_linear(const Linear *linear, const float *x, int64_t tokens, const float *residual, float *out) {
    int64_t threads = omp_get_max_threads();
    Input input = {allocate(tokens * (linear->inputs + 4) * sizeof(float)), allocate(tokens * sizeof(float)), allocate(tokens * sizeof(int32_t))};
    int64_t failed = !(input.values && input.scale && input.correction);
    if (!failed) {
#pragma omp parallel num_threads(threads)
        {
            int64_t thread = omp_get_thread_num(), team = omp_get_num_threads(), begin, end;
            share(tokens, thread, team, &begin, &end);
            for (int64_t i = begin; i < end; i++) prepare(linear, input, i, x + i * linear->inputs);
#pragma omp barrier
            apply(linear, input, tokens, NONE, residual, out, thread, team);
        }
    }
    free(input.values), free(input.scale), free(input.correction);
    return failed;
}

// ---------------------------------------------------------------------------------------------------- selection

static float log_sum_exp(const float *x, int64_t n) {
    float largest = -INFINITY, sum = 0.f;
    int64_t i = 0;
#ifdef VECTOR
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (; i + LANES <= n; i += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(x + i));
    largest = _mm512_reduce_max_ps(top);
#endif
    for (; i < n; i++) largest = fmaxf(largest, x[i]);
    if (!(largest > -INFINITY)) return largest;
    i = 0;
#ifdef VECTOR
    __m512 total = _mm512_setzero_ps(), shift = _mm512_set1_ps(largest);
    for (; i + LANES <= n; i += LANES) {
        __m512 difference = _mm512_sub_ps(_mm512_loadu_ps(x + i), shift);
        __mmask16 mask = _mm512_cmp_ps_mask(difference, _mm512_set1_ps(-87.f), _CMP_GT_OQ);
        total = _mm512_add_ps(total, _mm512_maskz_mov_ps(mask, exp512(difference)));
    }
    sum = _mm512_reduce_add_ps(total);
#endif
    for (; i < n; i++) sum += expf(x[i] - largest);
    return largest + logf(sum);
}

// Normalizers of rows of logits: out[r] = log sum_v exp(logits[r, v]).
void qkv_log_sum_exp(const float *logits, int64_t rows, int64_t vocab_size, float *out) {
#pragma omp parallel for if (rows * vocab_size > 65536)
    for (int64_t r = 0; r < rows; r++) out[r] = log_sum_exp(logits + r * vocab_size, vocab_size);
}

// The k largest values of each row, largest first; the lower index first among equal values.
void qkv_top_k(const float *values, int64_t rows, int64_t vocab_size, int64_t k, float *top, int64_t *indices) {
#pragma omp parallel for if (rows * vocab_size > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = values + r * vocab_size;
        float *best = top + r * k;
        int64_t *index = indices + r * k, count = 0, v = 0;
        while (v < vocab_size) {
#ifdef VECTOR
            if (count == k && v + LANES <= vocab_size) { // skip blocks without a better value
                __mmask16 mask = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + v), _mm512_set1_ps(best[k - 1]), _CMP_GT_OQ);
                if (!mask) {
                    v += LANES;
                    continue;
                }
            }
#endif
            int64_t stop = v + LANES < vocab_size ? v + LANES : vocab_size;
            for (; v < stop; v++) {
                if (count == k && !(x[v] > best[k - 1])) continue;
                int64_t slot = count < k ? count++ : k - 1;
                for (; slot > 0 && x[v] > best[slot - 1]; slot--) {
                    best[slot] = best[slot - 1];
                    index[slot] = index[slot - 1];
                }
                best[slot] = x[v];
                index[slot] = v;
            }
        }
    }
}

// exp(x) for x <= 0, to about one unit in the last place: 2^k e^r with |r| <= ln 2 / 2, and the Taylor series of e^r.
static inline double exp_double(double x) {
    const double shift = 0x1.8p52; // adding it rounds to an integer, which is in the low bits
    double shifted = (x < -708.0 ? -708.0 : x) * 0x1.71547652b82fep0 + shift, k = shifted - shift;
    double r = (x < -708.0 ? -708.0 : x) - k * 0x1.62e42fee00000p-1 - k * 0x1.a39ef35793c76p-33;
    double y = 1.0 / 479001600.0;
    y = y * r + 1.0 / 39916800.0;
    y = y * r + 1.0 / 3628800.0;
    y = y * r + 1.0 / 362880.0;
    y = y * r + 1.0 / 40320.0;
    y = y * r + 1.0 / 5040.0;
    y = y * r + 1.0 / 720.0;
    y = y * r + 1.0 / 120.0;
    y = y * r + 1.0 / 24.0;
    y = y * r + 1.0 / 6.0;
    y = y * r + 0.5;
    y = y * r + 1.0;
    y = y * r + 1.0;
    int64_t bits, power;
    memcpy(&bits, &shifted, 8);
    power = (int64_t)((uint64_t)(bits + 1023) << 52);
    double scale;
    memcpy(&scale, &power, 8);
    return x < -708.0 ? 0.0 : y * scale;
}

static double exp_sum(const float *x, int64_t n, double largest, double factor) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += exp_double(((double)x[i] - largest) * factor);
    return sum;
}

static float largest_of(const float *x, int64_t n) {
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

// sums[r] = sum_v exp((x[r, v] - max_w x[r, w]) / temperature).
void qkv_exp_sum(const float *x, int64_t rows, int64_t n, double temperature, double *sums) {
#pragma omp parallel for if (rows * n > 65536)
    for (int64_t r = 0; r < rows; r++)
        sums[r] = exp_sum(x + r * n, n, largest_of(x + r * n, n), 1.0 / temperature);
}

// Sample a token of each row from p ~ exp(x / temperature), by inverting the cumulative distribution at uniform[r].
void qkv_sample(const float *x, int64_t rows, int64_t n, double temperature, const double *uniform, int64_t *tokens) {
    enum { BLOCK = 256 };
#pragma omp parallel for if (rows * n > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * n;
        double largest = largest_of(row, n), factor = 1.0 / temperature, total = 0.0, before = 0.0;
        for (int64_t i = 0; i < n; i += BLOCK) total += exp_sum(row + i, i + BLOCK < n ? BLOCK : n - i, largest, factor);
        double threshold = uniform[r] * total, below = nextafter(total, 0.0);
        if (threshold > below) threshold = below;
        int64_t begin = 0;
        for (; begin + BLOCK < n; begin += BLOCK) { // the block that contains the token
            double sum = exp_sum(row + begin, BLOCK, largest, factor);
            if (before + sum > threshold) break;
            before += sum;
        }
        tokens[r] = begin;
        for (int64_t i = begin; i < begin + BLOCK && i < n; i++) {
            double p = exp_double(((double)row[i] - largest) * factor);
            if (p > 0.0) tokens[r] = i;
            before += p;
            if (before > threshold) break;
        }
    }
}

// Instruction set that the kernels were compiled for, as bits: 1 AVX-512, 2 int8 dot products, 4 bfloat16.
int64_t qkv_features(void) {
    int64_t features = 0;
#ifdef VECTOR
    features |= 1;
#ifdef __AVX512VNNI__
    features |= 2;
#endif
#ifdef __AVX512BF16__
    features |= 4;
#endif
#endif
    return features;
}
