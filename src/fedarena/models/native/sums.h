// Sums of many vectors in double precision, one vector after the other, and a look at whether they are sound.
#pragma once
#include <algorithm>

#include "simd.h"

// total += factor x, rounded as numpy rounds it: the product first, then the sum.
inline void add_scaled(double* total, const float* x, size_t count, double factor) {
    constexpr int HALF = LANES / 2;
    using Singles = float __attribute__((vector_size(HALF * sizeof(float))));
    using Doubles = double __attribute__((vector_size(HALF * sizeof(double))));
    size_t i = 0;
    for (; i + HALF <= count; i += HALF) {
        Singles some;
        Doubles sum;
        std::memcpy(&some, x + i, sizeof some);
        std::memcpy(&sum, total + i, sizeof sum);
        Doubles product = __builtin_convertvector(some, Doubles) * factor;
        asm("" : "+x"(product));  // keeps compilers from making one operation of two, which rounds once
        sum += product;
        std::memcpy(total + i, &sum, sizeof sum);
    }
    for (; i < count; i++) {
        double product = (double)x[i] * factor;
        asm("" : "+x"(product));
        total[i] += product;
    }
}

// No NaN and no infinity: their exponents are the largest there is.
inline bool all_finite(const float* x, size_t count) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        largest = std::max(largest, bits & 0x7fffffff);
    }
    return largest < 0x7f800000;
}
