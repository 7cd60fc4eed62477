// BatchNorm and GroupNorm. Both make of a channel y the number scale y + offset, with a mean and a deviation over the
// whole batch or over the channels of a group in one image; and both pass a gradient g back as
// scale g + pull y + push. So the loops over pixels (pool.h) know four numbers a channel and nothing of norms.
#pragma once
#include <vector>

#include "image.h"

// The sums of y - shift (to s) and of its square (to q) over `count` pixels, for V vectors of channels.
template <int V>
INLINE void shifted_sums_block(const float* y, int count, int pixel, const float* shift, float* s, float* q) {
    constexpr int U = 4 / V;  // several sums side by side: one would wait for itself
    Vec from[V], a[U][V], b[U][V];
    UNROLL for (int v = 0; v < V; v++) from[v] = load(shift + v * LANES);
    UNROLL for (int u = 0; u < U; u++) UNROLL for (int v = 0; v < V; v++) a[u][v] = b[u][v] = zeros();
    auto take = [&](int p, int u) __attribute__((always_inline)) {
        UNROLL for (int v = 0; v < V; v++) {
            Vec e = load(y + (size_t)p * pixel + v * LANES) - from[v];
            a[u][v] = a[u][v] + e;
            b[u][v] = fma(e, e, b[u][v]);
        }
    };
    int p = 0;
    for (; p + U <= count; p += U) UNROLL for (int u = 0; u < U; u++) take(p + u, u);
    for (; p < count; p++) take(p, 0);
    UNROLL for (int v = 0; v < V; v++) {
        Vec whole_a = a[0][v], whole_b = b[0][v];
        UNROLL for (int u = 1; u < U; u++) whole_a = whole_a + a[u][v], whole_b = whole_b + b[u][v];
        store(s + v * LANES, whole_a);
        store(q + v * LANES, whole_b);
    }
}

inline void shifted_sums(const float* y, const Map& map, const float* shift, float* s, float* q) {
    in_pieces<4>(map.vectors(), [&](int v, auto known) __attribute__((always_inline)) {
        int c = v * LANES;
        shifted_sums_block<known()>(y + c, map.pixels(), map.pixel, shift + c, s + c, q + c);
    });
}

struct Norm {
    enum Kind { NONE, BATCH, GROUP } kind = NONE;
    int groups = 1;
    double eps = 0, momentum = 0;
    size_t gamma_at = 0, beta_at = 0;  // where its weights begin among all
    Map y;                             // what it is applied to
    std::vector<float> running_mean, running_var;
    bool recalls = false;  // a batch norm that goes by these, and does not look at the batch

    // Numbers of every channel: one set for the batch, or one for every image.
    struct Set {
        Buffer scale, offset, pull, push, mean, inverse, total;
    };
    std::vector<Set> sets;
    Buffer shift, s, q;               // sums over one image, and from where they are taken
    std::vector<double> sum, square;  // over the batch: of y, later of the gradient

    const Set& of(int b) const { return sets[kind == GROUP ? b : 0]; }
    Set& of(int b) { return sets[kind == GROUP ? b : 0]; }

    void fit(const Map& map) {
        y = map;
        for (Buffer* buffer : {&shift, &s, &q}) buffer->resize(y.pixel);
        sum.resize(y.pixel);
        square.resize(y.pixel);
        if (kind == BATCH) {
            running_mean.resize(y.channels);
            running_var.resize(y.channels);
        }
        reserve(1);
    }

    void reserve(int rows) {
        size_t wanted = kind == GROUP ? rows : 1;
        if (sets.size() >= wanted) return;
        sets = std::vector<Set>(wanted);
        for (Set& set : sets)
            for (Buffer* b : {&set.scale, &set.offset, &set.pull, &set.push, &set.mean, &set.inverse, &set.total})
                b->resize(y.pixel);
    }

    void start() {
        std::fill(sum.begin(), sum.end(), 0.0);
        std::fill(square.begin(), square.end(), 0.0);
    }

    // Look at one image. The sums of a batch are taken from the mean of its first image: numbers far from zero would
    // lose their variance in rounding.
    void look(const float* image, int b, const float* weights) {
        if (kind == GROUP) return look_at_groups(image, of(b), weights);
        if (recalls) return;
        if (b == 0) {
            shift.clear();
            shifted_sums(image, y, shift, s, q);
            for (int c = 0; c < y.channels; c++) shift[c] = s[c] / y.pixels();
        }
        shifted_sums(image, y, shift, s, q);
        for (int c = 0; c < y.channels; c++) {
            sum[c] += s[c];
            square[c] += q[c];
        }
    }

    // After the last image of a batch: what BatchNorm does with it, and its memory of all batches.
    void settle(int rows, const float* weights) {
        double n = (double)rows * y.pixels();
        Set& set = sets[0];
        for (int c = 0; c < y.channels; c++) {
            double drift = sum[c] / n, variance = square[c] / n - drift * drift;
            if (variance < 0) variance = 0;  // rounding; a NaN stays
            set_channel(set, c, shift[c] + drift, 1.0 / std::sqrt(variance + eps), weights);
            running_mean[c] = (float)((1 - momentum) * running_mean[c] + momentum * (shift[c] + drift));
            running_var[c] = (float)((1 - momentum) * running_var[c] + momentum * variance * n / (n - 1));
        }
        start();  // the sums are wanted again on the way back
    }

    // From now on, until `recalls` is taken back.
    void recall(const float* weights) {
        recalls = true;
        for (int c = 0; c < y.channels; c++)
            set_channel(sets[0], c, running_mean[c], 1.0 / std::sqrt(running_var[c] + eps), weights);
    }

    void set_channel(Set& set, int c, double mean, double inverse, const float* weights) {
        set.mean[c] = (float)mean;
        set.inverse[c] = (float)inverse;
        set.scale[c] = (float)(weights[gamma_at + c] * inverse);
        set.offset[c] = (float)(weights[beta_at + c] - mean * weights[gamma_at + c] * inverse);
    }

    void look_at_groups(const float* image, Set& set, const float* weights) {
        int size = y.channels / groups;
        double n = (double)size * y.pixels();
        shift.clear();
        shifted_sums(image, y, shift, set.total, q);
        for (int c = 0; c < y.channels; c += size) {
            double mean = 0;
            for (int i = c; i < c + size; i++) mean += set.total[i] / n;
            for (int i = c; i < c + size; i++) shift[i] = (float)mean;
        }
        shifted_sums(image, y, shift, s, q);
        for (int c = 0; c < y.channels; c += size) {
            double drift = 0, variance = 0;
            for (int i = c; i < c + size; i++) drift += s[i] / n, variance += q[i] / n;
            variance -= drift * drift;
            if (variance < 0) variance = 0;
            double inverse = 1.0 / std::sqrt(variance + eps);
            for (int i = c; i < c + size; i++) set_channel(set, i, shift[i] + drift, inverse, weights);
        }
    }

    // One image on the way back: s are the sums of g, and q those of g (y - mean).
    void look_back(int b, const float* s, const float* q, const float* weights, float* gradient, float* bias_gradient) {
        if (kind == GROUP) return look_back_at_groups(of(b), s, q, weights, gradient, bias_gradient);
        for (int c = 0; c < y.channels; c++) {
            sum[c] += s[c];
            square[c] += q[c];
        }
    }

    // After the last image. The bias of a convolution below has no gradient: BatchNorm takes any constant away.
    void settle_back(int rows, float* gradient) {
        double n = (double)rows * y.pixels();
        Set& set = sets[0];
        for (int c = 0; c < y.channels; c++) {
            gradient[gamma_at + c] = (float)(square[c] * set.inverse[c]);
            gradient[beta_at + c] = (float)sum[c];
            double pull = -(double)set.scale[c] * set.inverse[c] * set.inverse[c] * square[c] / n;
            set.pull[c] = (float)pull;
            set.push[c] = (float)(-set.scale[c] * sum[c] / n - pull * set.mean[c]);
        }
    }

    void look_back_at_groups(Set& set, const float* s, const float* q, const float* weights, float* gradient,
                             float* bias_gradient) {
        int size = y.channels / groups;
        double n = (double)size * y.pixels();
        for (int c = 0; c < y.channels; c += size) {
            double inverse = set.inverse[c], first = 0, second = 0;
            for (int i = c; i < c + size; i++) {
                first += (double)weights[gamma_at + i] * s[i];
                second += (double)weights[gamma_at + i] * q[i];
            }
            double pull = -inverse * inverse * inverse * second / n;
            double push = -inverse * first / n - pull * set.mean[c];
            for (int i = c; i < c + size; i++) {
                set.pull[i] = (float)pull;
                set.push[i] = (float)push;
                gradient[gamma_at + i] += (float)(q[i] * inverse);
                gradient[beta_at + i] += s[i];
                if (bias_gradient)
                    bias_gradient[i] += (float)((double)set.scale[i] * s[i] + push * y.pixels() + pull * set.total[i]);
            }
        }
    }
};
