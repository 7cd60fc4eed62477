// Fully connected layers on top of each other, with their activations.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "activation.h"
#include "dense.h"
#include "image.h"

struct Dense {
    int inputs = 0, outputs = 0;
    bool has_bias = false;
    Activation activation;
    bool drops = false;  // some of its inputs, as masks say
    Map from;            // its inputs as torch counts them, channel by channel
    int wide = 0;      // numbers of an input row: the inputs, and zeros between them where pixels are padded
    int n = 0;         // with the constant for the bias, in whole vectors
    int outs = 0;      // outputs in whole fours
    size_t at = 0;     // where its weights begin among all
    Buffer x, dt, dx;  // input rows; gradient of the output, an output a row; gradient of the input
    Buffer whole;      // input rows before some were dropped: what is below knows its slope by them

    void fit(int numbers, size_t& size) {
        wide = numbers;
        n = round_up(wide + 1, LANES);
        outs = round_up(outputs, 4);
        at = size;
        size += (size_t)outs * n;
    }

    // Times a mask, whose rows are in torch's order.
    void mask(float* to, const float* factors, int rows) const {
        int pixels = from.pixels();
        for (int b = 0; b < rows; b++, to += n, factors += inputs)
            for (int p = 0; p < pixels; p++)
                for (int c = 0; c < from.channels; c++) to[(size_t)p * from.pixel + c] *= factors[c * pixels + p];
    }
};

struct Stack {
    std::vector<std::unique_ptr<Dense>> layers;
    Buffer logits, partial;  // what comes out; sums under way
    int logit_stride = 0;
    int capacity = 0;        // rows there is room for, in whole vectors: from one output to the next in dt
    bool has_below = false;  // something below the first layer wants its gradient
    const float* masks = nullptr;  // of this batch: for each layer that drops inputs a number for each; null: none does
    int masked = 0;                // numbers of a row in them

    int stride_after(size_t i) const { return i + 1 < layers.size() ? layers[i + 1]->n : logit_stride; }
    float* after(size_t i) { return i + 1 < layers.size() ? (float*)layers[i + 1]->x : (float*)logits; }

    void reserve(int rows) {
        capacity = round_up(rows, LANES);
        for (auto& layer : layers) {
            layer->x.resize((size_t)rows * layer->n);
            layer->dx.resize((size_t)rows * layer->n);
            layer->dt.resize((size_t)capacity * layer->outs);
        }
        logits.resize((size_t)rows * logit_stride);
    }

    void set_constant(Dense& layer, int first, int rows) {
        for (int b = first; b < first + rows; b++) layer.x[(size_t)b * layer.n + layer.wide] = layer.has_bias;
    }

    // From rows of the first layer's input to logits, for rows first..first + rows.
    void forward(const float* w, int first, int rows) {
        const float* mask = masks;
        for (size_t i = 0; i < layers.size(); i++) {
            Dense& layer = *layers[i];
            set_constant(layer, first, rows);
            if (layer.drops && masks) {
                layer.whole.copy(layer.x, (size_t)rows * layer.n);
                layer.mask(layer.x, mask, rows);
                mask += (size_t)rows * layer.inputs;
            }
            int stride = stride_after(i);
            float* y = after(i) + (size_t)first * stride;
            const float* x = layer.x + (size_t)first * layer.n;
            dense_forward(x, layer.n, w + layer.at, layer.outs, y, stride, rows, partial);
            for (size_t k = 0; k < (size_t)rows * stride && layer.activation.kind; k += LANES)
                store(y + k, layer.activation.of(load(y + k)));
        }
    }

    // Updates every layer from the last one's dt; the first layer's dx stays. `anchor` are the weights at which the
    // last `anchored` rows were computed.
    void backward(float* weights, const float* anchor, int rows, int anchored, const Rule& rule) {
        int whole = rows + anchored;
        const float* mask = masks + (size_t)rows * masked;
        for (size_t i = layers.size(); i-- > 0;) {
            Dense& layer = *layers[i];
            float* dx = i || has_below ? (float*)layer.dx : nullptr;
            if (dx && anchored)
                dense_back(layer.dt + rows, capacity, anchor + layer.at, layer.n, layer.outs,
                           layer.dx + (size_t)rows * layer.n, anchored);
            dense_backward(layer.x, layer.n, layer.dt, capacity, weights + layer.at, layer.at, layer.outs,
                           layer.outputs, dx, whole, rows, rule);
            if (layer.drops) {
                mask -= (size_t)rows * layer.inputs;
                if (dx) layer.mask(dx, mask, rows);
                std::memcpy(layer.x, layer.whole, (size_t)rows * layer.n * sizeof(float));
            }
            if (i) hand_down(*layers[i - 1], layer, whole);
        }
    }

    // The gradient of a layer's output from that of the next one's input, through the activation; rows become columns.
    void hand_down(Dense& below, const Dense& layer, int rows) {
        for (int o = 0; o < below.outputs; o += LANES)  // outside: what is written stays within a few rows of dt
            for (int first = 0; first < rows; first += LANES) {
                Vec g[LANES];
                UNROLL for (int i = 0; i < LANES; i++) {
                    size_t at = (size_t)std::min(first + i, rows - 1) * layer.n + o;
                    g[i] = below.activation.back(load(layer.dx + at), load(layer.x + at));
                }
                transpose(g);
                float* to = below.dt + (size_t)o * capacity + first;
                UNROLL for (int i = 0; i < LANES; i++)
                    if (o + i < below.outputs) store(to + (size_t)i * capacity, g[i]);
            }
    }
};
