// A fully connected layer: forward, and backward with the update of its weights in the same pass.
//
// Weights lie as torch has them, a row an output, but with rows padded to whole vectors and the bias as a last column,
// for an input that is always 1. So there is no bias to treat apart, and no vector is ever cut.
#pragma once
#include <algorithm>

#include "simd.h"

// w <- w - rate (u + beside), u <- momentum u + g + decay w + mu (w - centre) + shift: SGD with whatever is affine in w.
struct Rule {
    enum Form { PLAIN, SHIFTED, CENTRED, MOVING, ANY };  // nothing, one thing or several of what may be there
    float rate, momentum, decay, mu;
    const float *centre, *shift, *beside;  // as long as the weights, or null
    float* velocity;

    Form form() const {
        if (decay != 0 || beside || !!centre + !!shift + !!velocity > 1) return ANY;
        return centre ? CENTRED : shift ? SHIFTED : velocity ? MOVING : PLAIN;
    }
};

// Call f with the rule's form as a compile-time number: nothing is asked at every weight.
template <class F>
INLINE void with_form(const Rule& rule, F f) {
    switch (rule.form()) {
        case Rule::PLAIN: return f(std::integral_constant<Rule::Form, Rule::PLAIN>());
        case Rule::SHIFTED: return f(std::integral_constant<Rule::Form, Rule::SHIFTED>());
        case Rule::CENTRED: return f(std::integral_constant<Rule::Form, Rule::CENTRED>());
        case Rule::MOVING: return f(std::integral_constant<Rule::Form, Rule::MOVING>());
        case Rule::ANY: return f(std::integral_constant<Rule::Form, Rule::ANY>());
    }
}

template <Rule::Form FORM>
INLINE Vec updated(Vec w, Vec g, const Rule& rule, size_t at) {
    constexpr bool any = FORM == Rule::ANY;
    if (any && rule.decay != 0) g = fma(all(rule.decay), w, g);
    if (FORM == Rule::CENTRED || (any && rule.centre)) g = fma(all(rule.mu), w - load(rule.centre + at), g);
    if (FORM == Rule::SHIFTED || (any && rule.shift)) g = g + load(rule.shift + at);
    if (FORM == Rule::MOVING || (any && rule.velocity)) {
        g = fma(all(rule.momentum), load(rule.velocity + at), g);
        store(rule.velocity + at, g);
    }
    if (any && rule.beside) g = g + load(rule.beside + at);
    return fma(all(-rule.rate), g, w);
}

// y[b][o] for B rows and four outputs: sums of products along the row, each in a vector of partial sums. A long row
// comes in parts, between which the partial sums rest in `partial`.
template <int B>
INLINE void dense_forward_block(const float* x, int xs, const float* w, int ws, int n, float* partial, bool is_first,
                                bool is_last, float* y, int ys) {
    Vec a[B][4];
    UNROLL for (int b = 0; b < B; b++) UNROLL for (int o = 0; o < 4; o++)
        a[b][o] = is_first ? zeros() : load(partial + (b * 4 + o) * LANES);
    for (int f = 0; f < n; f += LANES) {
        Vec v[4];
        UNROLL for (int o = 0; o < 4; o++) v[o] = load(w + (size_t)o * ws + f);
        UNROLL for (int b = 0; b < B; b++) {
            Vec u = load(x + (size_t)b * xs + f);
            UNROLL for (int o = 0; o < 4; o++) a[b][o] = fma(u, v[o], a[b][o]);
        }
    }
    UNROLL for (int b = 0; b < B; b++) {
        if (is_last) _mm_storeu_ps(y + (size_t)b * ys, sums(a[b][0], a[b][1], a[b][2], a[b][3]));
        else UNROLL for (int o = 0; o < 4; o++) store(partial + (b * 4 + o) * LANES, a[b][o]);
    }
}

// x: rows of n padded inputs; w: outs (a multiple of 4) rows; y: rows of ys.
//
// Weights are read from far away once: so many outputs at a time that theirs stay in the second cache while all rows
// pass by. A few rows, or parts of them, stay in the first cache while those weights pass by.
inline void dense_forward(const float* x, int n, const float* w, int outs, float* y, int ys, int rows,
                          Buffer& partial) {
    constexpr int NEAR = 32768 / sizeof(float), FAR = 655360 / sizeof(float);
    int part = ROWS * n <= NEAR ? n : 1024, block = std::max(4, FAR / n / 4 * 4);
    int pieces = (rows + ROWS - 1) / ROWS, size = (rows + pieces - 1) / pieces;
    int together = std::max(1, NEAR / (size * n));  // pieces
    if (part < n) partial.resize((size_t)rows * block * LANES);
    for (int first = 0; first < outs; first += block)
        for (int f = 0; f < n; f += part)
            for (int piece = 0; piece < pieces; piece += together)
                for (int o = first; o < std::min(first + block, outs); o += 4) {
                    Range some{piece, piece + together};
                    some_pieces<ROWS>(rows, some, [&](int b, auto known) __attribute__((always_inline)) {
                        float* rest = partial + ((size_t)b * block + (o - first) * known()) * LANES;
                        dense_forward_block<known()>(x + (size_t)b * n + f, n, w + (size_t)o * n + f, n,
                                                     std::min(part, n - f), rest, f == 0, f + part >= n,
                                                     y + (size_t)b * ys + o, ys);
                    });
                }
}

// dx[b][panel] = sum over outputs of dt[o][b] w[o][panel].
template <int B, int V>
INLINE void dense_back_block(const float* dt, int ds, const float* w, int ws, int outs, float* dx, int xs) {
    Vec a[B][V];
    UNROLL for (int b = 0; b < B; b++) UNROLL for (int v = 0; v < V; v++) a[b][v] = zeros();
    for (int o = 0; o < outs; o++) {
        Vec u[V];
        UNROLL for (int v = 0; v < V; v++) u[v] = load(w + (size_t)o * ws + v * LANES);
        UNROLL for (int b = 0; b < B; b++) {
            Vec d = all(dt[(size_t)o * ds + b]);
            UNROLL for (int v = 0; v < V; v++) a[b][v] = fma(d, u[v], a[b][v]);
        }
    }
    UNROLL for (int b = 0; b < B; b++) UNROLL for (int v = 0; v < V; v++) store(dx + (size_t)b * xs + v * LANES, a[b][v]);
}

// w[o][panel] updated by the gradient sum over rows of dt[o][b] x[b][panel].
template <int O, int V>
INLINE void dense_update_block(const float* dt, int ds, const float* x, int xs, int rows, float* w, int ws, size_t at,
                               const Rule& rule) {
    Vec a[O][V];
    UNROLL for (int o = 0; o < O; o++) UNROLL for (int v = 0; v < V; v++) a[o][v] = zeros();
    for (int b = 0; b < rows; b++) {
        Vec u[V];
        UNROLL for (int v = 0; v < V; v++) u[v] = load(x + (size_t)b * xs + v * LANES);
        UNROLL for (int o = 0; o < O; o++) {
            Vec d = all(dt[(size_t)o * ds + b]);
            UNROLL for (int v = 0; v < V; v++) a[o][v] = fma(d, u[v], a[o][v]);
        }
    }
    with_form(rule, [&](auto form) __attribute__((always_inline)) {
        UNROLL for (int o = 0; o < O; o++) UNROLL for (int v = 0; v < V; v++) {
            size_t k = (size_t)o * ws + v * LANES;
            store(w + k, updated<form()>(load(w + k), a[o][v], rule, at + k));
        }
    });
}

// dx = dt^T w, for rows that do not update these weights.
inline void dense_back(const float* dt, int ds, const float* w, int n, int outs, float* dx, int rows) {
    in_pieces<VECS>(n / LANES, [&](int panel, auto v) __attribute__((always_inline)) {
        size_t f = (size_t)panel * LANES;
        in_pieces<ROWS>(rows, [&](int b, auto known) __attribute__((always_inline)) {
            dense_back_block<known(), v()>(dt + b, ds, w + f, n, outs, dx + (size_t)b * n + f, n);
        });
    });
}

// One pass over the weights, panel by panel: the gradient of the input (unless dx is null), then the update.
// dt: the gradient of the output, a row an output (outs x ds, of which the last ones may be padding: `real` are not).
// `rows` columns of it count for the update; the first `back` of them are asked for in dx.
inline void dense_backward(const float* x, int n, const float* dt, int ds, float* w, size_t at, int outs, int real,
                           float* dx, int rows, int back, const Rule& rule) {
    constexpr int NEAR = 40960 / sizeof(float);
    if (!dx && (size_t)rows * n <= NEAR) {  // all inputs stay in the first cache: output by output, in long runs of weights
        in_pieces<ROWS>(real, [&](int o, auto known) __attribute__((always_inline)) {
            in_pieces<VECS>(n / LANES, [&](int panel, auto v) __attribute__((always_inline)) {
                size_t f = (size_t)panel * LANES;
                dense_update_block<known(), v()>(dt + (size_t)o * ds, ds, x + f, n, rows, w + (size_t)o * n + f, n,
                                                 at + (size_t)o * n + f, rule);
            });
        });
        return;
    }
    in_pieces<VECS>(n / LANES, [&](int panel, auto v) __attribute__((always_inline)) {
        constexpr int V = v();
        size_t f = (size_t)panel * LANES;
        if (dx)
            in_pieces<ROWS>(back, [&](int b, auto known) __attribute__((always_inline)) {
                dense_back_block<known(), V>(dt + b, ds, w + f, n, outs, dx + (size_t)b * n + f, n);
            });
        in_pieces<ROWS>(real, [&](int o, auto known) __attribute__((always_inline)) {
            dense_update_block<known(), V>(dt + (size_t)o * ds, ds, x + f, n, rows, w + (size_t)o * n + f, n,
                                                  at + (size_t)o * n + f, rule);
        });
    });
}
