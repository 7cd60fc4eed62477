// One vector of floats, 16 wide with AVX-512 and 8 wide with AVX2. The rest of the source does not know which.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

#if defined(__AVX512F__)

using Vec = __m512;
constexpr int LANES = 16;
constexpr int ROWS = 6;  // rows and vectors of a register block: ROWS x VECS sums, and what they are made of
constexpr int VECS = 4;
constexpr int REGISTERS = 32;

INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
INLINE Vec all(float x) { return _mm512_set1_ps(x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vec maximum(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
INLINE Vec minimum(Vec a, Vec b) { return _mm512_min_ps(a, b); }
INLINE Vec nearest(Vec x) { return _mm512_roundscale_ps(x, 0); }
INLINE Vec power_of_two(Vec n) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), n); }
INLINE Vec where_positive(Vec x, Vec yes, Vec no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), yes);
}
using Mask = __mmask16;
using Index = __m512i;  // a whole number in each lane
INLINE Mask both(Mask a, Mask b) { return a & b; }
INLINE Mask is_number(Vec x) { return _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q); }
INLINE Mask not_at_most(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }  // true where either is NaN
INLINE Vec choose(Mask m, Vec yes, Vec no) { return _mm512_mask_mov_ps(no, m, yes); }
INLINE Vec where_true(Mask m, Vec x) { return _mm512_maskz_mov_ps(m, x); }
INLINE Index every(int n) { return _mm512_set1_epi32(n); }
INLINE Index choose(Mask m, Index yes, Index no) { return _mm512_mask_mov_epi32(no, m, yes); }
INLINE Mask equal(Index a, Index b) { return _mm512_cmpeq_epi32_mask(a, b); }
INLINE Index load_bytes(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
INLINE void store_bytes(uint8_t* p, Index v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(v)); }
INLINE Vec to_floats(Index v) { return _mm512_cvtepi32_ps(v); }
// The sums over the lanes of four vectors.
INLINE __m128 sums(Vec a, Vec b, Vec c, Vec d) {
    Vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    Vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    Vec t = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(t), _mm512_extractf32x8_ps(t, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
// Rows become columns.
INLINE void transpose(Vec r[16]) {
    Vec t[16];
    UNROLL for (int i = 0; i < 16; i += 2) {  // pairs of rows, then fours, within each quarter of a vector
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) UNROLL for (int k = 0; k < 2; k++) {
        r[i + 2 * k] = _mm512_shuffle_ps(t[i + k], t[i + k + 2], 0x44);
        r[i + 2 * k + 1] = _mm512_shuffle_ps(t[i + k], t[i + k + 2], 0xEE);
    }
    UNROLL for (int k = 0; k < 4; k++) {  // then the quarters
        t[k] = _mm512_shuffle_f32x4(r[k], r[k + 4], 0x88);
        t[k + 4] = _mm512_shuffle_f32x4(r[k], r[k + 4], 0xDD);
        t[k + 8] = _mm512_shuffle_f32x4(r[k + 8], r[k + 12], 0x88);
        t[k + 12] = _mm512_shuffle_f32x4(r[k + 8], r[k + 12], 0xDD);
    }
    UNROLL for (int k = 0; k < 8; k++) {
        r[k] = _mm512_shuffle_f32x4(t[k], t[k + 8], 0x88);
        r[k + 8] = _mm512_shuffle_f32x4(t[k], t[k + 8], 0xDD);
    }
}

#else

using Vec = __m256;
constexpr int LANES = 8;
constexpr int ROWS = 3;
constexpr int VECS = 4;
constexpr int REGISTERS = 16;

INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
INLINE Vec all(float x) { return _mm256_set1_ps(x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vec maximum(Vec a, Vec b) { return _mm256_max_ps(a, b); }
INLINE Vec minimum(Vec a, Vec b) { return _mm256_min_ps(a, b); }
INLINE Vec nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Vec power_of_two(Vec n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
INLINE Vec where_positive(Vec x, Vec yes, Vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}
using Mask = __m256;
using Index = __m256i;
INLINE Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
INLINE Mask is_number(Vec x) { return _mm256_cmp_ps(x, x, _CMP_ORD_Q); }
INLINE Mask not_at_most(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
INLINE Vec choose(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
INLINE Vec where_true(Mask m, Vec x) { return _mm256_and_ps(m, x); }
INLINE Index every(int n) { return _mm256_set1_epi32(n); }
INLINE Index choose(Mask m, Index yes, Index no) {
    return _mm256_castps_si256(choose(m, _mm256_castsi256_ps(yes), _mm256_castsi256_ps(no)));
}
INLINE Mask equal(Index a, Index b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
INLINE Index load_bytes(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
INLINE void store_bytes(uint8_t* p, Index v) {
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
}
INLINE Vec to_floats(Index v) { return _mm256_cvtepi32_ps(v); }
INLINE __m128 sums(Vec a, Vec b, Vec c, Vec d) {
    Vec ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    Vec cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    Vec t = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}
INLINE void transpose(Vec r[8]) {
    Vec t[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) UNROLL for (int k = 0; k < 2; k++) {
        r[i + 2 * k] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0x44);
        r[i + 2 * k + 1] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0xEE);
    }
    UNROLL for (int k = 0; k < 4; k++) {
        t[k] = _mm256_permute2f128_ps(r[k], r[k + 4], 0x20);
        t[k + 4] = _mm256_permute2f128_ps(r[k], r[k + 4], 0x31);
    }
    UNROLL for (int k = 0; k < 8; k++) r[k] = t[k];
}

#endif

INLINE Vec zeros() { return all(0.0f); }

// e^x to two units in the last place, 0 < result < inf; NaN stays NaN.
INLINE Vec exponential(Vec x) {
    x = maximum(all(-87.0f), minimum(all(88.0f), x));
    Vec n = nearest(x * all(1.44269504f));
    Vec r = fma(n, all(-0.693359375f), x);
    r = fma(n, all(2.12194440e-4f), r);
    Vec p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = fma(r * r, p, r + all(1.0f));
    return p * power_of_two(n);
}

INLINE int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Zeroed memory on cache lines.
class Buffer {
   public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }
    void resize(size_t count) {
        if (count <= size_) return;
        std::free(data_);
        data_ = nullptr;
        size_ = 0;
        void* p = nullptr;
        if (posix_memalign(&p, 64, (count + 2 * LANES) * sizeof(float))) throw std::bad_alloc();
        data_ = static_cast<float*>(p);
        size_ = count;
        clear();
    }
    void copy(const float* from, size_t count) {
        resize(count);
        std::memcpy(data_, from, count * sizeof(float));
    }
    void clear() { std::memset(data_, 0, (size_ + 2 * LANES) * sizeof(float)); }
    operator float*() { return data_; }
    operator const float*() const { return data_; }

   private:
    float* data_ = nullptr;
    size_t size_ = 0;
};

// Call f with a compile-time number equal to n, 1 to MOST.
template <int MOST, class F>
INLINE void with_number(int n, F f) {
    if constexpr (MOST > 0) {
        if (n == MOST) f(std::integral_constant<int, MOST>());
        else with_number<MOST - 1>(n, f);
    }
}

// From first to last, without the last.
struct Range {
    int first, last;
    int count() const { return last - first; }
};

// Cut 0..n into the fewest pieces of at most MOST, as even as can be: f(start, compile-time size).
template <int MOST, class F>
INLINE void in_pieces(int n, F f) {
    int count = (n + MOST - 1) / MOST;
    for (int i = 0, start = 0; i < count; i++) {
        int size = (n - start + count - i - 1) / (count - i);
        with_number<MOST>(size, [&](auto known) __attribute__((always_inline)) { f(start, known); });
        start += size;
    }
}

// The same for some of these pieces.
template <int MOST, class F>
INLINE void some_pieces(int n, Range some, F f) {
    int count = (n + MOST - 1) / MOST, size = n / count, longer = n % count;  // the first so many have one more
    for (int i = some.first; i < std::min(some.last, count); i++)
        with_number<MOST>(size + (i < longer), [&](auto known) __attribute__((always_inline)) {
            f(i * size + std::min(i, longer), known);
        });
}
