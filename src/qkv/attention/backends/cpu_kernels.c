// Softmax attention on CPUs, forward and backward, for training on sequences whose keys fit into the cache of a core.
//
//   P = softmax(S),   S = scale Q K^T + bias + mask,   O = D(P) V          D: dropout
//   dP = D(dO V^T),   dS = P (dP - rowsum(P dP)),   dQ = scale dS K,   dK = scale dS^T Q,   dV = D(P)^T dO
//   dbias = dS, added up over the batch if all examples share a bias
//
// A thread computes one head of keys and values at a time, and BLOCK queries at a time, with whole rows of P; the
// backward pass recomputes P from the log of the sums of its rows. Tensors are float32 or bfloat16, the computation is
// in float32. Lengths and features are padded with zeros to multiples of BLOCK.
//
// Compiled by `qkv.runtime.c_library` on first use, with -march=native.

#include "vectors.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define ROWS (LANES / 2) // of a register tile
#define BLOCK 16         // queries at a time; a multiple of LANES and ROWS

typedef struct {
    void *data;
    int64_t batch, head, row; // strides in elements; features are contiguous
} View;

typedef struct {
    int64_t bfloat16; // whether tensors are bfloat16 instead of float32
    int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
    int64_t causal; // whether query i attends to keys up to i + keys - queries only
    const uint8_t *mask; // of bytes, true where attention is allowed; or null
    int64_t mask_batch, mask_head, mask_row, mask_key; // strides
    View bias; // float32, or null data
    View grad_bias; // zeros, in float32, or null data; `batch` is the stride of the sums
    int64_t sum_per_example; // whether grad_bias has a sum for each example, instead of one for each thread
    float scale, dropout;
    uint64_t seed;
    int64_t threads;
    float *log_sum; // [batch, heads, queries]
    View query, key, value, output;
    View grad_output, grad_query, grad_key, grad_value;
} Attention;

INLINE int64_t padded(int64_t n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

INLINE float *row_of(View v, int64_t b, int64_t h, int64_t row) {
    return (float *)v.data + b * v.batch + h * v.head + row * v.row;
}

// Copies of rows to and from float32.

static void read_rows(const Attention *a, View v, int64_t b, int64_t h, int64_t rows, int64_t dim, float scale,
        float *to) {
    int64_t begin = b * v.batch + h * v.head, width = padded(dim);
    memset(to + rows * width, 0, (padded(rows) - rows) * width * sizeof(float));
    for (int64_t i = 0; i < rows; i++, to += width) {
        if (a->bfloat16) {
            const uint16_t *from = (const uint16_t *)v.data + begin + i * v.row;
            for (int64_t d = 0; d < dim; d++) to[d] = scale * to_float(from[d]);
        } else {
            const float *from = (const float *)v.data + begin + i * v.row;
            for (int64_t d = 0; d < dim; d++) to[d] = scale * from[d];
        }
        for (int64_t d = dim; d < width; d++) to[d] = 0;
    }
}

static void write_rows(const Attention *a, View v, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t dim,
        float scale, const float *from) {
    int64_t begin = b * v.batch + h * v.head + first * v.row, width = padded(dim);
    for (int64_t i = 0; i < rows; i++, from += width) {
        if (a->bfloat16) {
            uint16_t *to = (uint16_t *)v.data + begin + i * v.row;
            for (int64_t d = 0; d < dim; d++) to[d] = to_bfloat16(scale * from[d]);
        } else {
            float *to = (float *)v.data + begin + i * v.row;
            for (int64_t d = 0; d < dim; d++) to[d] = scale * from[d];
        }
    }
}

static void transpose(const float *from, int64_t rows, int64_t columns, float *to) {
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = 0; k < LANES; k++) to[j * rows + i + k] = from[(i + k) * columns + j];
}

// C = A B or C += A B for C [m, n] and A [m, depth], whose strides are given; m and n are multiples of BLOCK.

INLINE void tile(int vectors, int add, int64_t depth, const float *a, int64_t a_row, int64_t a_column,
        const float *b, int64_t b_row, float *c, int64_t c_row) {
    Vector sum[ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) sum[i][j] = add ? *(Vector *)(c + i * c_row + j * LANES) : (Vector){0};
    for (int64_t k = 0; k < depth; k++) {
        const Vector *row = (const Vector *)(b + k * b_row);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) sum[i][j] += a[i * a_row + k * a_column] * row[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) *(Vector *)(c + i * c_row + j * LANES) = sum[i][j];
}

INLINE void product(int add, int64_t m, int64_t n, int64_t depth, const float *a, int64_t a_row, int64_t a_column,
        const float *b, int64_t b_row, float *c, int64_t c_row) {
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES)
        for (int64_t i = 0; i < m; i += ROWS)
            tile(2, add, depth, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row);
    for (; j < n; j += LANES)
        for (int64_t i = 0; i < m; i += ROWS)
            tile(1, add, depth, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row);
}

static void multiply(int64_t m, int64_t n, int64_t depth, const float *a, int64_t a_row, const float *b, float *c,
        int64_t b_row) {
    product(0, m, n, depth, a, a_row, 1, b, b_row, c, b_row);
}

static void add_transposed(int64_t m, int64_t n, int64_t depth, const float *a, int64_t a_row, const float *b,
        float *c) {
    product(1, m, n, depth, a, 1, a_row, b, n, c, n);
}

// Add the bias to the scores of a block of queries, and set them to -inf where they are masked.
static void bias_and_mask(const Attention *a, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t width,
        float *scores, int64_t stride) {
    int64_t keys = width < a->keys ? width : a->keys;
    for (int64_t i = 0; i < rows; i++, scores += stride) {
        if (a->bias.data) {
            const float *bias = row_of(a->bias, b, h, first + i);
            for (int64_t j = 0; j < keys; j++) scores[j] += bias[j];
        }
        int64_t visible = a->keys;
        if (a->causal) visible = first + i + a->keys - a->queries + 1;
        visible = visible < 0 ? 0 : visible > a->keys ? a->keys : visible;
        if (a->mask) {
            const uint8_t *allowed = a->mask + b * a->mask_batch + h * a->mask_head + (first + i) * a->mask_row;
            for (int64_t j = 0; j < visible; j++) scores[j] = allowed[j * a->mask_key] ? scores[j] : -INFINITY;
        }
        for (int64_t j = visible; j < width; j++) scores[j] = -INFINITY;
    }
}

INLINE Words mixed(Words x) { // the finalizer of MurmurHash3
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

// Zero the elements of a row of length `width` with probability `dropout`, and scale the others.
static void drop(const Attention *a, int64_t row, int64_t width, const float *from, float *to) {
    uint64_t key = (a->seed + row + 1) * 0x9E3779B97F4A7C15u;
    key = (key ^ key >> 32) * 0xD6E8FEB86659FD93u;
    uint32_t low = key, high = key >> 32;
    uint32_t threshold = (uint32_t)(a->dropout * 4294967295.0);
    float scale = a->dropout < 1 ? 1 / (1 - a->dropout) : 0;
    Words index;
    for (int k = 0; k < LANES; k++) index[k] = k;
    for (int64_t j = 0; j < width; j += LANES) {
        Words random = mixed(mixed(index + (uint32_t)j + low) ^ high);
        Ints kept = (Ints)(random >= threshold);
        *(Vector *)(to + j) = (Vector)((Ints)(*(const Vector *)(from + j) * scale) & kept);
    }
}

INLINE float sum_of(Vector x) {
    float sum = 0;
    for (int k = 0; k < LANES; k++) sum += x[k];
    return sum;
}

// Replace a row of scores by exp(scores - max); return the sum, and the max in `largest`.
static float exponentials(float *scores, int64_t width, float *largest) {
    Vector max = (Vector){0} - INFINITY, sum = {0};
    Ints invalid = {0};
    for (int64_t j = 0; j < width; j += LANES) {
        Vector x = *(Vector *)(scores + j);
        max = where(x > max, x, max);
        invalid |= x != x;
    }
    float top = -INFINITY;
    for (int k = 0; k < LANES; k++) top = invalid[k] ? NAN : max[k] > top ? max[k] : top;
    *largest = top;
    if (top == -INFINITY) { // all keys are masked
        memset(scores, 0, width * sizeof(float));
        return 0;
    }
    for (int64_t j = 0; j < width; j += LANES) {
        Vector e = exponential(*(Vector *)(scores + j) - top);
        *(Vector *)(scores + j) = e;
        sum += e;
    }
    return sum_of(sum);
}

INLINE float *take(float **scratch, int64_t size) {
    float *taken = *scratch;
    *scratch += size;
    return taken;
}

// Padded number of keys that some query of a block sees.
INLINE int64_t visible_keys(const Attention *a, int64_t first) {
    int64_t last = first + BLOCK < a->queries ? first + BLOCK : a->queries;
    int64_t visible = a->causal ? last + a->keys - a->queries : a->keys;
    return padded(visible < 0 ? 0 : visible > a->keys ? a->keys : visible);
}

static void forward_head(const Attention *a, int64_t b, int64_t kv_head, float *scratch) {
    int64_t keys = padded(a->keys), dim = padded(a->dim), value_dim = padded(a->value_dim);
    int64_t groups = a->heads / a->kv_heads;
    float *key = take(&scratch, keys * dim), *key_t = take(&scratch, keys * dim);
    float *value = take(&scratch, keys * value_dim);
    float *query = take(&scratch, padded(a->queries) * dim), *p = take(&scratch, BLOCK * keys);
    float *output = take(&scratch, BLOCK * value_dim), *dropped = take(&scratch, keys);
    read_rows(a, a->key, b, kv_head, a->keys, a->dim, 1, key);
    read_rows(a, a->value, b, kv_head, a->keys, a->value_dim, 1, value);
    transpose(key, keys, dim, key_t);
    for (int64_t h = kv_head * groups; h < (kv_head + 1) * groups; h++) {
        read_rows(a, a->query, b, h, a->queries, a->dim, a->scale, query);
        for (int64_t first = 0; first < a->queries; first += BLOCK) {
            int64_t width = visible_keys(a, first), row = (b * a->heads + h) * a->queries + first;
            int64_t rows = a->queries - first < BLOCK ? a->queries - first : BLOCK;
            multiply(BLOCK, width, dim, query + first * dim, dim, key_t, p, keys);
            bias_and_mask(a, b, h, first, rows, width, p, keys);
            float inverse[BLOCK];
            for (int64_t i = 0; i < rows; i++) {
                float max, sum = exponentials(p + i * keys, width, &max);
                a->log_sum[row + i] = sum == 0 ? INFINITY : max + logf(sum); // P is then 0 in the backward pass
                inverse[i] = sum == 0 ? 0 : 1 / sum;
                if (a->dropout > 0) {
                    drop(a, row + i, width, p + i * keys, dropped);
                    memcpy(p + i * keys, dropped, width * sizeof(float));
                }
            }
            product(0, BLOCK, value_dim, width, p, keys, 1, value, value_dim, output, value_dim);
            for (int64_t i = 0; i < rows; i++)
                write_rows(a, a->output, b, h, first + i, 1, a->value_dim, inverse[i], output + i * value_dim);
        }
    }
}

// Replace the scores in `p` by P, and dO V^T in `ds` by dS; write D(P) to `dropped`, which is `p` without dropout.
static void score_gradients(const Attention *a, int64_t row, int64_t rows, int64_t width, float *p, float *dropped,
        float *ds, int64_t stride) {
    for (int64_t i = 0; i < rows; i++, p += stride, dropped += stride, ds += stride) {
        float log_sum = a->log_sum[row + i];
        Vector total = {0};
        for (int64_t j = 0; j < width; j += LANES)
            *(Vector *)(p + j) = exponential(*(Vector *)(p + j) - log_sum);
        if (a->dropout > 0) {
            drop(a, row + i, width, p, dropped);
            drop(a, row + i, width, ds, ds);
        }
        for (int64_t j = 0; j < width; j += LANES) total += *(Vector *)(p + j) * *(Vector *)(ds + j);
        float sum = sum_of(total);
        for (int64_t j = 0; j < width; j += LANES)
            *(Vector *)(ds + j) = *(Vector *)(p + j) * (*(Vector *)(ds + j) - sum);
    }
}

static void add_bias_gradients(const Attention *a, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t width,
        const float *ds, int64_t stride) {
    int64_t sum = a->sum_per_example ? b : omp_get_thread_num();
    int64_t keys = width < a->keys ? width : a->keys;
    for (int64_t i = 0; i < rows; i++, ds += stride) {
        float *grad = row_of(a->grad_bias, sum, h, first + i);
        for (int64_t j = 0; j < keys; j++) grad[j] += ds[j];
    }
}

static void backward_head(const Attention *a, int64_t b, int64_t kv_head, float *scratch) {
    int64_t keys = padded(a->keys), queries = padded(a->queries), dim = padded(a->dim);
    int64_t value_dim = padded(a->value_dim);
    int64_t groups = a->heads / a->kv_heads;
    float *key = take(&scratch, keys * dim), *key_t = take(&scratch, keys * dim);
    float *grad_key = take(&scratch, keys * dim);
    float *value = take(&scratch, keys * value_dim), *value_t = take(&scratch, keys * value_dim);
    float *grad_value = take(&scratch, keys * value_dim);
    float *query = take(&scratch, queries * dim), *grad_output = take(&scratch, queries * value_dim);
    float *p = take(&scratch, BLOCK * keys), *ds = take(&scratch, BLOCK * keys);
    float *grad_query = take(&scratch, BLOCK * dim);
    float *dropped = a->dropout > 0 ? take(&scratch, BLOCK * keys) : p;
    read_rows(a, a->key, b, kv_head, a->keys, a->dim, 1, key);
    read_rows(a, a->value, b, kv_head, a->keys, a->value_dim, 1, value);
    transpose(key, keys, dim, key_t);
    transpose(value, keys, value_dim, value_t);
    memset(grad_key, 0, keys * dim * sizeof(float));
    memset(grad_value, 0, keys * value_dim * sizeof(float));
    for (int64_t h = kv_head * groups; h < (kv_head + 1) * groups; h++) {
        read_rows(a, a->query, b, h, a->queries, a->dim, a->scale, query);
        read_rows(a, a->grad_output, b, h, a->queries, a->value_dim, 1, grad_output);
        for (int64_t first = 0; first < a->queries; first += BLOCK) {
            int64_t width = visible_keys(a, first), row = (b * a->heads + h) * a->queries + first;
            int64_t rows = a->queries - first < BLOCK ? a->queries - first : BLOCK;
            multiply(BLOCK, width, dim, query + first * dim, dim, key_t, p, keys);
            multiply(BLOCK, width, value_dim, grad_output + first * value_dim, value_dim, value_t, ds, keys);
            bias_and_mask(a, b, h, first, rows, width, p, keys);
            score_gradients(a, row, rows, width, p, dropped, ds, keys);
            if (a->grad_bias.data) add_bias_gradients(a, b, h, first, rows, width, ds, keys);
            add_transposed(width, value_dim, rows, dropped, keys, grad_output + first * value_dim, grad_value);
            add_transposed(width, dim, rows, ds, keys, query + first * dim, grad_key);
            product(0, BLOCK, dim, width, ds, keys, 1, key, dim, grad_query, dim);
            write_rows(a, a->grad_query, b, h, first, rows, a->dim, a->scale, grad_query);
        }
    }
    write_rows(a, a->grad_key, b, kv_head, 0, a->keys, a->dim, 1, grad_key);
    write_rows(a, a->grad_value, b, kv_head, 0, a->keys, a->value_dim, 1, grad_value);
}

// Run `head` for each head of keys and values; return 0, or 1 if there is not enough memory.
static int64_t for_each_head(const Attention *a, void (*head)(const Attention *, int64_t, int64_t, float *)) {
    int64_t keys = padded(a->keys), queries = padded(a->queries), dim = padded(a->dim);
    int64_t value_dim = padded(a->value_dim);
    int64_t size = (3 * keys + queries + BLOCK) * (dim + value_dim) + 3 * BLOCK * keys;
    int64_t failed = 0, tasks = a->batch * a->kv_heads;
#pragma omp parallel num_threads(a->threads)
    {
        float *scratch = aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64);
        if (!scratch)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tasks; t++)
            if (scratch) head(a, t / a->kv_heads, t % a->kv_heads, scratch);
        free(scratch);
    }
    return failed;
}

int64_t qkv_attention_forward(const Attention *a) { return for_each_head(a, forward_head); }

int64_t qkv_attention_backward(const Attention *a) { return for_each_head(a, backward_head); }
