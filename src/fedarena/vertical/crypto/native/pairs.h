// Products modulo n², of numbers written as two digits base n: x = a + n b.
//
// Montgomery's reduction of a c finds m with a c + m n = R r. So, modulo n²,
//     (a + n b)(c + n d) = a c + n (a d + b c) = R r + n (a d + b c - m),
// and the second digit is (a d + b c - m) / R modulo n. Three products and two reductions of the length of n: five
// eighths of one product and one reduction of the length of n². The result is the product divided by R.
#pragma once
#include "lanes.h"

template <int WORDS>
struct Modulus {
    static constexpr int L = limbs_of(WORDS);
    Word n[L];
    Word inverse;   // of -n, modulo 2^BITS
    Word shift[L];  // -R modulo n: with R it is a multiple of n from which every m can be taken
};

template <int WORDS>
struct alignas(64) Pair {
    static constexpr int L = limbs_of(WORDS);
    static constexpr int SIZE = whole(2 * L, LANES);
    Limb digits[SIZE];
    Limb* first() { return digits; }
    Limb* second() { return digits + L; }
    const Limb* first() const { return digits; }
    const Limb* second() const { return digits + L; }
};

// One or two products whose sum is to be reduced.
template <int TERMS>
struct Factors {
    const Limb* x[TERMS];
    const Limb* y[TERMS];
};

#if defined(__AVX512IFMA__)

// sum <- (sum + x y + m n) / R, not carried; the limbs of m go to `quotients`. Two rows of x at a time.
template <int WORDS, int TERMS>
INLINE void reduce(Limb* sum, const Factors<TERMS>& f, const Modulus<WORDS>& modulus, Limb* quotients) {
    constexpr int L = limbs_of(WORDS);
    const Word* n = modulus.n;
    const Limb inverse = all(modulus.inverse);
    for (int i = 0; i < L; i += 2) {
        Limb x0[TERMS], x1[TERMS], y1[TERMS], y2[TERMS];  // y of the limb before, and of the one before that
        Limb t = sum[0], u = sum[1], v = zero();
        for (int k = 0; k < TERMS; k++) {
            x0[k] = f.x[k][i];
            x1[k] = f.x[k][i + 1];
            y2[k] = f.y[k][0];
            y1[k] = f.y[k][1];
            t = low(t, x0[k], y2[k]);
            u = low(u, x0[k], y1[k]);
            v = high(v, x0[k], y2[k]);
            u = low(u, x1[k], y2[k]);
        }
        Limb n2 = all(n[0]), n1 = all(n[1]);
        Limb m0 = low(zero(), t, inverse);
        t = low(t, m0, n2);
        u = low(u, m0, n1);
        v = high(v, m0, n2);
        u = add(add(u, v), carry(t));
        Limb m1 = low(zero(), u, inverse);
        u = low(u, m1, n2);
        quotients[i] = m0;
        quotients[i + 1] = m1;
        auto step = [&](int j, const Limb* y0, Limb n0) __attribute__((always_inline)) {
            Limb a = sum[j], b = zero();
            for (int k = 0; k < TERMS; k++) {
                a = low(a, x0[k], y0[k]);
                b = high(b, x0[k], y1[k]);
                a = low(a, x1[k], y1[k]);
                b = high(b, x1[k], y2[k]);
                y2[k] = y1[k];
                y1[k] = y0[k];
            }
            a = low(a, m0, n0);
            b = high(b, m0, n1);
            a = low(a, m1, n1);
            b = high(b, m1, n2);
            n2 = n1;
            n1 = n0;
            sum[j - 2] = add(a, b);
        };
        sum[L] = sum[L + 1] = zero();
        for (int j = 2; j < L; j++) {
            Limb y0[TERMS];
            for (int k = 0; k < TERMS; k++) y0[k] = f.y[k][j];
            step(j, y0, all(n[j]));
        }
        Limb none[TERMS];
        for (int k = 0; k < TERMS; k++) none[k] = zero();
        step(L, none, zero());
        step(L + 1, none, zero());
        sum[0] = add(sum[0], carry(u));
    }
}

template <int L>
INLINE void carried(Limb* out, const Limb* sum) {
    Limb c = zero();
    for (int j = 0; j < L; j++) {
        Limb x = add(sum[j], c);
        c = carry(x);
        out[j] = masked(x);
    }
}

// Both digits from the products that they are sums of. Digits may be up to 2 n going in and coming out: R is more than
// 2^8 n, so that nothing grows.
template <int WORDS, int FIRST, int SECOND>
INLINE void reduce_pair(Pair<WORDS>& out, const Factors<FIRST>& first, const Factors<SECOND>& second,
                        const Modulus<WORDS>& modulus) {
    constexpr int L = limbs_of(WORDS);
    Limb sum[L + 2], m[L], digit[L];
    for (int j = 0; j < L; j++) sum[j] = zero();
    reduce<WORDS>(sum, first, modulus, m);
    carried<L>(digit, sum);
    for (int j = 0; j < L; j++) sum[j] = subtract(all(MASK + modulus.shift[j]), m[j]);
    sum[0] = add(sum[0], all(1));  // R - m + shift
    reduce<WORDS>(sum, second, modulus, m);
    carried<L>(out.second(), sum);
    for (int j = 0; j < L; j++) out.first()[j] = digit[j];
}

// 2 x, modulo n or not: up to 4 n will do in a product with one term.
template <int WORDS>
INLINE void doubled(Limb* out, const Limb* x, const Modulus<WORDS>&) {
    for (int j = 0; j < limbs_of(WORDS); j++) out[j] = add(x[j], x[j]);
    carried<limbs_of(WORDS)>(out, out);
}

// x <- x - n where that is not negative; 1 in those lanes.
template <int WORDS>
INLINE Limb less_modulus(Limb* x, const Modulus<WORDS>& modulus) {
    constexpr int L = limbs_of(WORDS);
    Limb less[L], b = zero();
    for (int j = 0; j < L; j++) {
        Limb d = add(subtract(x[j], all(modulus.n[j])), b);
        b = borrow(d);
        less[j] = masked(d);
    }
    __mmask8 is_there = _mm512_cmpeq_epi64_mask(b, zero());
    for (int j = 0; j < L; j++) x[j] = _mm512_mask_mov_epi64(x[j], is_there, less[j]);
    return _mm512_maskz_mov_epi64(is_there, all(1));
}

// Both digits below n.
template <int WORDS>
INLINE void settle(Pair<WORDS>& x, const Modulus<WORDS>& modulus) {
    Limb over = less_modulus<WORDS>(x.first(), modulus);  // n more in the first digit is one more in the second
    x.second()[0] = add(x.second()[0], over);
    carried<limbs_of(WORDS)>(x.second(), x.second());
    less_modulus<WORDS>(x.second(), modulus);
}

// a + p b, for digits of half the length.
template <int WORDS>
INLINE void compose(Limb* out, const Limb* a, const Limb* b, const Word* p) {
    constexpr int HALF = limbs_of(WORDS) / 2;
    Limb sum[2 * HALF + 1];
    for (int j = 0; j < HALF; j++) sum[j] = a[j], sum[HALF + j] = zero();
    sum[2 * HALF] = zero();
    for (int i = 0; i < HALF; i++)
        for (int j = 0; j < HALF; j++) {
            sum[i + j] = low(sum[i + j], b[i], all(p[j]));
            sum[i + j + 1] = high(sum[i + j + 1], b[i], all(p[j]));
        }
    carried<2 * HALF>(out, sum);
}

#else

using Long = unsigned __int128;

// sum[0..L) += x y; what is carried out of it.
template <int L>
INLINE Word add_product(Word* sum, const Word* y, Word x) {
    Word carry = 0;
#pragma GCC unroll 8
    for (int j = 0; j < L; j++) {
        Long t = (Long)x * y[j] + sum[j] + carry;
        sum[j] = (Word)t;
        carry = (Word)(t >> 64);
    }
    return carry;
}

// sum[L..2 L] <- (sum + x y + m n) / R; the words of m go to `quotients`. What is above sum[L] is zero at first.
template <int WORDS, int TERMS>
INLINE void reduce(Word* sum, const Factors<TERMS>& f, const Modulus<WORDS>& modulus, Word* quotients) {
    for (int i = 0; i < WORDS; i++) {
        Long top = sum[i + WORDS];
        for (int k = 0; k < TERMS; k++) top += add_product<WORDS>(sum + i, f.y[k], f.x[k][i]);
        Word m = sum[i] * modulus.inverse;
        top += add_product<WORDS>(sum + i, modulus.n, m);
        quotients[i] = m;
        sum[i + WORDS] = (Word)top;
        sum[i + WORDS + 1] = (Word)(top >> 64);
    }
}

// x <- x - n where that is not negative, with `top` above x; whether it was.
template <int L>
INLINE Word less_modulus(Word* x, Word& top, const Word* n) {
    Word less[L], borrow = 0;
    for (int j = 0; j < L; j++) {
        Long d = (Long)x[j] - n[j] - borrow;
        less[j] = (Word)d;
        borrow = (Word)(d >> 64) & 1;
    }
    Word is_there = (Word)(top >= borrow), mask = 0 - is_there;  // chosen without a branch: the numbers are secret
    for (int j = 0; j < L; j++) x[j] = (less[j] & mask) | (x[j] & ~mask);
    top -= borrow & mask;
    return is_there;
}

// 2 x modulo n.
template <int WORDS>
INLINE void doubled(Word* out, const Word* x, const Modulus<WORDS>& modulus) {
    Word top = 0;
    for (int j = 0; j < WORDS; j++) {
        Word above = x[j] >> 63;
        out[j] = x[j] << 1 | top;
        top = above;
    }
    less_modulus<WORDS>(out, top, modulus.n);
}

// Both digits from the products that they are sums of; below n coming out. Each term going in is below R n, so that k
// terms reduced are below (k + 1) n, and a little more in the second digit.
template <int WORDS, int FIRST, int SECOND>
INLINE void reduce_pair(Pair<WORDS>& out, const Factors<FIRST>& first, const Factors<SECOND>& second,
                        const Modulus<WORDS>& modulus) {
    Word sum[2 * WORDS + 1] = {0}, m[WORDS], digit[WORDS];
    reduce<WORDS>(sum, first, modulus, m);
    memcpy(digit, sum + WORDS, sizeof digit);
    Word over = 0;
    for (int k = 0; k < FIRST; k++) over += less_modulus<WORDS>(digit, sum[2 * WORDS], modulus.n);
    memset(sum, 0, sizeof sum);
    Word carry = 1;
    for (int j = 0; j < WORDS; j++) {  // R - m + shift
        Long t = (Long)modulus.shift[j] + ~m[j] + carry;
        sum[j] = (Word)t;
        carry = (Word)(t >> 64);
    }
    sum[WORDS] = carry + over;  // n more in the first digit is one more in the second
    reduce<WORDS>(sum, second, modulus, m);
    memcpy(out.second(), sum + WORDS, sizeof digit);
    memcpy(out.first(), digit, sizeof digit);
    for (int k = 0; k <= SECOND; k++) less_modulus<WORDS>(out.second(), sum[2 * WORDS], modulus.n);
}

template <int WORDS>
INLINE void settle(Pair<WORDS>&, const Modulus<WORDS>&) {}

// a + p b, for digits of half the length.
template <int WORDS>
INLINE void compose(Word* out, const Word* a, const Word* b, const Word* p) {
    constexpr int HALF = WORDS / 2;
    memcpy(out, a, 8 * HALF);
    memset(out + HALF, 0, 8 * HALF);
    for (int i = 0; i < HALF; i++) out[i + HALF] = add_product<HALF>(out + i, p, b[i]);
}

#endif

// out <- x y / R; `out` may be x or y.
template <int WORDS>
INLINE void multiply(Pair<WORDS>& out, const Pair<WORDS>& x, const Pair<WORDS>& y, const Modulus<WORDS>& modulus) {
    Factors<1> first = {{x.first()}, {y.first()}};
    Factors<2> second = {{x.first(), x.second()}, {y.second(), y.first()}};
    reduce_pair<WORDS>(out, first, second, modulus);
}

// out <- x x / R, with a product less: both products of the second digit are the same.
template <int WORDS>
INLINE void square(Pair<WORDS>& out, const Pair<WORDS>& x, const Modulus<WORDS>& modulus) {
    Limb twice[limbs_of(WORDS)];
    doubled<WORDS>(twice, x.second(), modulus);
    Factors<1> first = {{x.first()}, {x.first()}};
    Factors<1> second = {{x.first()}, {twice}};
    reduce_pair<WORDS>(out, first, second, modulus);
}
