// Local SGD of a stack of fully connected layers with softmax cross-entropy on top, many steps in one call.
//
// Python translates the layers (models/compiled.py), loads weights and corrections, and hands over rows with the order in
// which they come. Built once for AVX-512 and once for AVX2; which one runs is decided when it is loaded.
#include <memory>
#include <type_traits>
#include <vector>

#include "dense.h"

namespace {

enum Activation { NONE = 0, RELU = 1, ELU = 2 };

struct Layer {
    int inputs, outputs;   // of the layer
    bool has_bias;
    Activation activation;
    float alpha;           // of ELU
    int n;                 // numbers of an input row: inputs, the constant for the bias, padding
    int outs;              // outputs in whole fours
    size_t at;             // where its weights begin
    Buffer x, dt, dx;      // input rows; gradient of the output, an output a row; gradient of the input
};

struct Network {
    std::vector<Layer*> layers;
    Buffer weights, velocity, centre, shift, beside, anchor, logits;
    bool has_velocity = false, has_centre = false, has_shift = false, has_beside = false, has_anchor = false;
    float momentum = 0, decay = 0, mu = 0;
    size_t size = 0;
    int capacity = 0, classes = 0, logit_stride = 0;
    ~Network() {
        for (Layer* layer : layers) delete layer;
    }

    int stride_after(size_t i) const { return i + 1 < layers.size() ? layers[i + 1]->n : logit_stride; }
    float* after(size_t i) { return i + 1 < layers.size() ? (float*)layers[i + 1]->x : (float*)logits; }

    void reserve(int rows) {
        if (rows <= capacity) return;
        capacity = rows;
        for (Layer* layer : layers) {
            layer->x.resize((size_t)rows * layer->n);
            layer->dx.resize((size_t)rows * layer->n);
            layer->dt.resize((size_t)rows * layer->outs);
        }
        logits.resize((size_t)rows * logit_stride);
    }

    // Between torch's order (weight, bias) and ours (padded rows with the bias at their end).
    void pack(const float* flat, float* packed) const {
        std::memset(packed, 0, size * sizeof(float));
        for (const Layer* layer : layers) {
            for (int o = 0; o < layer->outputs; o++, flat += layer->inputs)
                std::memcpy(packed + layer->at + (size_t)o * layer->n, flat, layer->inputs * sizeof(float));
            if (layer->has_bias)
                for (int o = 0; o < layer->outputs; o++) packed[layer->at + (size_t)o * layer->n + layer->inputs] = *flat++;
        }
    }
    void unpack(const float* packed, float* flat) const {
        for (const Layer* layer : layers) {
            for (int o = 0; o < layer->outputs; o++, flat += layer->inputs)
                std::memcpy(flat, packed + layer->at + (size_t)o * layer->n, layer->inputs * sizeof(float));
            if (layer->has_bias)
                for (int o = 0; o < layer->outputs; o++) *flat++ = packed[layer->at + (size_t)o * layer->n + layer->inputs];
        }
    }

    void take_rows(const float* x, const int64_t* order, int rows, int first) {
        Layer* layer = layers[0];
        for (int b = 0; b < rows; b++) {
            float* row = layer->x + (size_t)(first + b) * layer->n;
            std::memcpy(row, x + (size_t)order[b] * layer->inputs, layer->inputs * sizeof(float));
            row[layer->inputs] = layer->has_bias;
        }
    }

    // From rows of the first layer's input to logits, for rows first..first + rows.
    void forward(const float* w, int first, int rows) {
        for (size_t i = 0; i < layers.size(); i++) {
            Layer* layer = layers[i];
            int stride = stride_after(i);
            float* y = after(i) + (size_t)first * stride;
            dense_forward(layer->x + (size_t)first * layer->n, layer->n, w + layer->at, layer->outs, y, stride, rows);
            if (i + 1 == layers.size()) break;
            activate(*layer, y, (size_t)rows * stride);
            float constant = layers[i + 1]->has_bias;
            for (int b = 0; b < rows; b++) y[(size_t)b * stride + layer->outputs] = constant;
        }
    }

    static void activate(const Layer& layer, float* y, size_t count) {
        if (layer.activation == RELU)
            for (size_t i = 0; i < count; i += LANES) store(y + i, maximum(zeros(), load(y + i)));
        else if (layer.activation == ELU)
            for (size_t i = 0; i < count; i += LANES) {
                Vec v = load(y + i);
                store(y + i, where_positive(v, v, all(layer.alpha) * (exponential(v) - all(1.0f))));
            }
    }

    // Softmax cross-entropy of rows first..first + rows; its gradient, times `sign`, goes to the last layer.
    double loss(const int64_t* labels, const int64_t* order, const float* class_weights, bool normalise, int first,
                int rows, float sign) {
        Layer* last = layers.back();
        float* dt = last->dt;
        double mass = 0, total = 0;
        for (int b = 0; b < rows; b++) mass += class_weights ? class_weights[labels[order[b]]] : 1.0;
        if (class_weights && !normalise) mass = rows;
        for (int b = 0; b < rows; b++) {
            const float* z = logits + (size_t)(first + b) * logit_stride;
            int64_t label = labels[order[b]];
            float most = z[0], sum = 0;
            for (int c = 1; c < classes; c++) most = z[c] > most ? z[c] : most;
            for (int c = 0; c < classes; c++) {
                float e = std::exp(z[c] - most);
                dt[(size_t)c * capacity + first + b] = e;
                sum += e;
            }
            float part = (float)((class_weights ? class_weights[label] : 1.0) / mass);
            total += part * (std::log((double)sum) - (double)(z[label] - most));
            for (int c = 0; c < classes; c++) {
                float& d = dt[(size_t)c * capacity + first + b];
                d = sign * part * (d / sum - (c == label));
            }
        }
        return total;
    }

    void backward(int rows, int anchored, const Rule& rule) {
        int whole = rows + anchored;
        for (size_t i = layers.size(); i-- > 0;) {
            Layer* layer = layers[i];
            float* dx = i ? (float*)layer->dx : nullptr;
            if (i && anchored)
                dense_back(layer->dt + rows, capacity, anchor + layer->at, layer->n, layer->outs,
                           layer->dx + (size_t)rows * layer->n, anchored);
            (is_plain(rule) ? dense_backward<true> : dense_backward<false>)(
                layer->x, layer->n, layer->dt, capacity, weights + layer->at, layer->at, layer->outs, dx, whole, rows, rule);
            if (i) hand_down(*layers[i - 1], *layer, whole);
        }
    }

    // The gradient of a layer's output from that of the next one's input, through the activation.
    void hand_down(Layer& below, const Layer& layer, int rows) {
        for (int b = 0; b < rows; b++) {
            const float* d = (const float*)layer.dx + (size_t)b * layer.n;
            const float* h = (const float*)layer.x + (size_t)b * layer.n;
            float* out = (float*)below.dt + b;
            for (int o = 0; o < below.outputs; o++) {
                float slope = below.activation == NONE || h[o] > 0 ? 1.0f
                              : below.activation == RELU          ? 0.0f
                                                                  : h[o] + below.alpha;
                out[(size_t)o * capacity] = d[o] * slope;
            }
        }
    }
};

}  // namespace

extern "C" {

// Each layer is five numbers: inputs, outputs, has bias, activation, alpha of ELU.
void* fedarena_new(const double* program, int layers) {
    auto* net = new Network;
    for (int i = 0; i < layers; i++, program += 5) {
        auto* layer = new Layer;
        layer->inputs = (int)program[0];
        layer->outputs = (int)program[1];
        layer->has_bias = program[2] != 0;
        layer->activation = (Activation)(int)program[3];
        layer->alpha = (float)program[4];
        layer->n = round_up(layer->inputs + 1, LANES);
        layer->outs = round_up(layer->outputs, 4);
        layer->at = net->size;
        net->size += (size_t)layer->outs * layer->n;
        net->layers.push_back(layer);
    }
    net->classes = net->layers.back()->outputs;
    net->logit_stride = round_up(net->classes + 1, LANES);
    net->weights.resize(net->size);
    return net;
}

void fedarena_free(void* handle) { delete static_cast<Network*>(handle); }

// Weights to start from, and the rule of every step; each vector may be null but the weights.
void fedarena_load(void* handle, const float* w, const float* velocity, const float* centre, const float* shift,
                   const float* beside, const float* anchor, float momentum, float decay, float mu) {
    auto* net = static_cast<Network*>(handle);
    auto take = [&](const float* from, Buffer& to, bool& has) {
        has = from != nullptr;
        if (!has) return;
        to.resize(net->size);
        net->pack(from, to);
    };
    net->pack(w, net->weights);
    take(velocity, net->velocity, net->has_velocity);
    take(centre, net->centre, net->has_centre);
    take(shift, net->shift, net->has_shift);
    take(beside, net->beside, net->has_beside);
    take(anchor, net->anchor, net->has_anchor);
    net->momentum = momentum;
    net->decay = decay;
    net->mu = mu;
}

// Steps over batches of these sizes, rows of x (and labels) in this order; the mean loss of each goes to `losses`.
void fedarena_train(void* handle, const float* x, const int64_t* labels, const int64_t* order,
                    const float* class_weights, int normalise, const int32_t* sizes, const float* rates, int steps,
                    double* losses) {
    auto* net = static_cast<Network*>(handle);
    for (int s = 0; s < steps; s++) {
        int rows = sizes[s], anchored = net->has_anchor ? rows : 0;
        net->reserve(rows + anchored);
        Rule rule{rates[s],
                  net->momentum,
                  net->decay,
                  net->mu,
                  net->has_centre ? (const float*)net->centre : nullptr,
                  net->has_shift ? (const float*)net->shift : nullptr,
                  net->has_beside ? (const float*)net->beside : nullptr,
                  net->has_velocity ? (float*)net->velocity : nullptr};
        net->take_rows(x, order, rows, 0);
        net->forward(net->weights, 0, rows);
        losses[s] = net->loss(labels, order, class_weights, normalise, 0, rows, 1.0f);
        if (anchored) {
            net->take_rows(x, order, rows, rows);
            net->forward(net->anchor, rows, rows);
            net->loss(labels, order, class_weights, normalise, rows, rows, -1.0f);
        }
        net->backward(rows, anchored, rule);
        order += rows;
    }
}

void fedarena_save(void* handle, float* w, float* velocity) {
    auto* net = static_cast<Network*>(handle);
    net->unpack(net->weights, w);
    if (velocity && net->has_velocity) net->unpack(net->velocity, velocity);
}

}  // extern "C"
