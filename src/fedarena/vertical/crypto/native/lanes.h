// A limb of several numbers at once: 52 bits of eight numbers with AVX512-IFMA, 64 bits of one number elsewhere.
//
// Outside, numbers are rows of 64-bit words. Inside they are limbs, limb j of all lanes side by side. The rest of the
// source does not know how many lanes there are.
#pragma once
#include <cstdint>
#include <cstring>

using Word = uint64_t;

#define INLINE static inline __attribute__((always_inline))

constexpr int whole(int count, int step) { return (count + step - 1) / step * step; }

#if defined(__AVX512IFMA__)
#include <immintrin.h>

using Limb = __m512i;
constexpr int LANES = 8;
constexpr int BITS = 52;
constexpr Word MASK = (Word(1) << BITS) - 1;
constexpr int limbs_of(int words) { return words * 5 / 4; }  // with eight bits of room, for 8 words and more

INLINE Limb zero() { return _mm512_setzero_si512(); }
INLINE Limb all(Word x) { return _mm512_set1_epi64((long long)x); }
INLINE Limb low(Limb sum, Limb a, Limb b) { return _mm512_madd52lo_epu64(sum, a, b); }    // reads 52 bits of a and b
INLINE Limb high(Limb sum, Limb a, Limb b) { return _mm512_madd52hi_epu64(sum, a, b); }
INLINE Limb add(Limb a, Limb b) { return _mm512_add_epi64(a, b); }
INLINE Limb subtract(Limb a, Limb b) { return _mm512_sub_epi64(a, b); }
INLINE Limb masked(Limb a) { return _mm512_and_si512(a, all(MASK)); }
INLINE Limb carry(Limb a) { return _mm512_srli_epi64(a, BITS); }
INLINE Limb borrow(Limb a) { return _mm512_srai_epi64(a, BITS); }  // of a negative number, too
INLINE Limb right(Limb a, int bits) { return _mm512_srlv_epi64(a, all(bits)); }
INLINE Limb left(Limb a, int bits) { return _mm512_sllv_epi64(a, all(bits)); }  // 0 from 64 bits on
INLINE Limb either(Limb a, Limb b) { return _mm512_or_si512(a, b); }

INLINE Word lane(const Limb& a, int k) { return reinterpret_cast<const Word*>(&a)[k]; }
INLINE void set_lane(Limb& a, int k, Word x) { reinterpret_cast<Word*>(&a)[k] = x; }

// Eight rows of eight words become eight columns.
INLINE void transpose(Limb* out, const Limb* in) {
    Limb a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_epi64(in[i], in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi64(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + j] = _mm512_shuffle_i64x2(a[i + j], a[i + j + 2], 0x88);
            b[i + j + 2] = _mm512_shuffle_i64x2(a[i + j], a[i + j + 2], 0xDD);
        }
    for (int j = 0; j < 4; j++) {
        out[j] = _mm512_shuffle_i64x2(b[j], b[j + 4], 0x88);
        out[j + 4] = _mm512_shuffle_i64x2(b[j], b[j + 4], 0xDD);
    }
}

// `count` words (a multiple of eight) of each row, as they are.
INLINE void gather(Limb* out, const Word* const* rows, int count) {
    for (int at = 0; at < count; at += 8) {
        Limb in[8];
        for (int k = 0; k < 8; k++) in[k] = _mm512_loadu_si512(rows[k] + at);
        transpose(out + at, in);
    }
}

INLINE void scatter(Word* const* rows, const Limb* in, int count) {
    for (int at = 0; at < count; at += 8) {
        Limb out[8];
        transpose(out, in + at);
        for (int k = 0; k < 8; k++) _mm512_storeu_si512(rows[k] + at, out[k]);
    }
}

template <int WORDS>
INLINE void to_limbs(Limb* out, const Limb* words) {
    for (int j = 0; j < limbs_of(WORDS); j++) {
        int word = j * BITS / 64, shift = j * BITS % 64;
        Limb x = right(words[word], shift);
        if (word + 1 < WORDS) x = either(x, left(words[word + 1], 64 - shift));
        out[j] = masked(x);
    }
}

template <int WORDS>
INLINE void to_words(Limb* out, const Limb* limbs) {
    for (int word = 0; word < WORDS; word++) {
        int j = word * 64 / BITS, shift = word * 64 % BITS;
        Limb x = either(right(limbs[j], shift), left(limbs[j + 1], BITS - shift));
        if (j + 2 < limbs_of(WORDS)) x = either(x, left(limbs[j + 2], 2 * BITS - shift));
        out[word] = x;
    }
}

#else

using Limb = Word;
constexpr int LANES = 1;
constexpr int BITS = 64;
constexpr int limbs_of(int words) { return words; }

INLINE Limb zero() { return 0; }
INLINE Limb all(Word x) { return x; }
INLINE Word lane(const Limb& a, int) { return a; }
INLINE void set_lane(Limb& a, int, Word x) { a = x; }

INLINE void gather(Limb* out, const Word* const* rows, int count) { memcpy(out, rows[0], 8 * (size_t)count); }
INLINE void scatter(Word* const* rows, const Limb* in, int count) { memcpy(rows[0], in, 8 * (size_t)count); }

template <int WORDS>
INLINE void to_limbs(Limb* out, const Limb* words) {
    memcpy(out, words, 8 * WORDS);
}

template <int WORDS>
INLINE void to_words(Limb* out, const Limb* limbs) {
    memcpy(out, limbs, 8 * WORDS);
}

#endif
