// What stands between layers. Both kinds never decrease, so that a max-pool may be moved before them.
#pragma once
#include "simd.h"

struct Activation {
    enum Kind { NONE = 0, RELU = 1, ELU = 2 } kind = NONE;
    float alpha = 0;  // of ELU

    INLINE_MEMBER Vec of(Vec x) const {
        if (kind == RELU) return maximum(zeros(), x);
        if (kind == ELU) return where_positive(x, x, all(alpha) * (exponential(x) - all(1.0f)));
        return x;
    }
    // The gradient before it, from the one behind it and from its output.
    INLINE_MEMBER Vec back(Vec d, Vec output) const {
        if (kind == RELU) return where_positive(output, d, zeros());
        if (kind == ELU) return where_positive(output, d, d * (output + all(alpha)));
        return d;
    }
};
