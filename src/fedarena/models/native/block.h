// A convolution with what follows it: norm, pool, activation. Each of the four may be missing, the convolution too.
#pragma once
#include <memory>
#include <vector>

#include "conv.h"
#include "pool.h"

struct Block {
    std::unique_ptr<Convolution> conv;
    Norm norm;
    Finish finish;
    Map in, y;                // the input as it lies in x; what norm, pool and activation are applied to
    Buffer x;                 // inputs of all rows
    Buffer kept, raw;         // y of all rows if the norm needs it again, else of one; y at each maximum
    Buffer arrived;           // gradients of the outputs of all rows, unless they lie elsewhere
    Buffer dy, s, q;          // gradient of y, and sums over the gradient, of one row
    std::vector<uint8_t> places;
    Images output, gradient;  // where outputs go, and where their gradients come from

    bool has_norm() const { return norm.kind != Norm::NONE; }
    bool has_pool() const { return finish.pool.kind != Pool::NONE; }
    bool has_activation() const { return finish.activation.kind != Activation::NONE; }
    bool has_weights() const { return conv || has_norm(); }
    bool has_batch_norm() const { return norm.kind == Norm::BATCH; }
    bool is_barrier() const { return has_batch_norm() && !norm.recalls; }  // no row passes before all have arrived
    const Map& out() const { return finish.pool.to; }

    // Lay everything out for images that come like this; its weights begin at `size`, which grows by them.
    bool fit(const Map& input, size_t& size) {
        finish.has_norm = has_norm();
        in = y = padded(input);
        if (conv) {
            if (!conv->fit(input)) return false;
            in = conv->x;
            y = conv->y;
            conv->at = size;
            conv->bias_at = conv->at + conv->size();
            size = conv->bias_at + y.pixel;
            dy.resize(conv->d.size());
        }
        if (has_norm()) {
            if (y.channels % norm.groups) return false;
            norm.fit(y);
            norm.gamma_at = size;
            norm.beta_at = size + y.pixel;
            size += 2 * y.pixel;
        }
        s.resize(y.pixel);
        q.resize(y.pixel);
        return finish.pool.fit(y);
    }

    void reserve(int rows) {
        x.resize(rows * in.size());
        if (conv) kept.resize((has_norm() ? rows : 1) * y.size());
        if (has_norm()) norm.reserve(rows);
        if (has_norm() && has_pool()) raw.resize(rows * out().size());
        if (finish.pool.kind == Pool::MAXIMUM) places.resize(std::max(places.size(), rows * out().size()));
    }

    float* y_of(int b) { return conv ? kept + (has_norm() ? b : 0) * y.size() : x + b * in.size(); }
    float* raw_of(int b) { return has_pool() && has_norm() ? raw + b * out().size() : y_of(b); }
    uint8_t* places_of(int b) { return places.empty() ? nullptr : places.data() + b * out().size(); }
    const Norm::Set* norm_of(int b) const { return has_norm() ? &norm.of(b) : nullptr; }

    void convolve(int b, const float* weights) {
        if (conv) conv->forward(x + b * in.size(), weights, y_of(b));
        if (has_norm()) norm.look(y_of(b), b, weights);
    }

    void emit(int b) { finish.forward(y_of(b), norm_of(b), output.map, output.of(b), places_of(b), raw_of(b)); }

    // The gradient of an output has arrived: through the activation, and into the sums that norm and bias want.
    void gate(int b, const float* weights, float* g) {
        float* bias = conv && conv->has_bias ? g + conv->bias_at : nullptr;
        finish.gate(gradient.of(b), output.map, output.of(b), raw_of(b), has_norm() ? norm.of(b).mean : s, s, q);
        if (has_norm()) norm.look_back(b, s, q, weights, g, bias);
        else if (bias)
            for (int c = 0; c < y.channels; c++) bias[c] += s[c];
    }

    // On to the gradient of the weights, and, where it is wanted, of the input.
    void backward(int b, float* g, float* dx) {
        if (!conv) {
            if (dx) finish.backward(gradient.of(b), places_of(b), y_of(b), norm_of(b), y, dx);
            return;
        }
        finish.backward(gradient.of(b), places_of(b), y_of(b), norm_of(b), conv->d, dy);
        conv->weight_gradient(x + b * in.size(), dy, g + conv->at);
        if (dx) conv->backward(dy, dx);
    }
};
