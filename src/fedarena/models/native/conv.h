// Convolution: forward, gradient of its input, gradient of its weights.
//
// All three are sums over taps. A tap is one number that an output pixel reads: a place of the window and a channel. The
// offsets of the taps are data, so that one kernel serves every kernel size, stride and padding; with two vectors of
// output channels and a dozen pixels in registers it runs at the speed of the multipliers. Weights lie as
// [vector of output channels][tap][lane], taps in the order of torch's channels-last weights: row, column, channel.
#pragma once
#include <algorithm>
#include <vector>

#include "image.h"

// Pixels and vectors of a register block, within the registers there are.
template <int V>
constexpr int most_pixels() {
    constexpr int most = (REGISTERS - 1 - V) / V;
    return most > 16 ? 16 : most < 1 ? 1 : most;
}
constexpr int CONV_VECS = REGISTERS == 32 ? 4 : 2;

// y for P pixels and V vectors of channels: start + sum over taps of x[tap] w[tap].
template <int P, int V>
INLINE void correlate_block(const float* x, size_t step, const int32_t* taps, int count, const float* w, size_t ws,
                            const float* start, float* y, size_t y_step) {
    Vec a[P][V];
    UNROLL for (int v = 0; v < V; v++) {
        Vec s = load(start + v * LANES);
        UNROLL for (int p = 0; p < P; p++) a[p][v] = s;
    }
    for (int t = 0; t < count; t++) {
        Vec u[V];
        UNROLL for (int v = 0; v < V; v++) u[v] = load(w + v * ws + (size_t)t * LANES);
        const float* from = x + taps[t];
        UNROLL for (int p = 0; p < P; p++) {  // three pixels from one address: there are few address registers
            Vec b = all(from[(p % 3) * step]);
            UNROLL for (int v = 0; v < V; v++) a[p][v] = fma(b, u[v], a[p][v]);
            if (p % 3 == 2) from += 3 * step;
        }
    }
    UNROLL for (int p = 0; p < P; p++) UNROLL for (int v = 0; v < V; v++) store(y + p * y_step + v * LANES, a[p][v]);
}

// A sum over taps for every pixel of a grid: where it reads, where it writes, and how far apart the pixels are in both.
struct Correlation {
    std::vector<int32_t> taps;
    int height = 0, width = 0;
    size_t x_first = 0, x_row = 0, x_pixel = 0;
    size_t y_first = 0, y_row = 0, y_pixel = 0;

    template <int V>
    INLINE_MEMBER void rows(const float* x, const float* w, const float* start, float* y) const {
        size_t ws = taps.size() * LANES;
        for (int h = 0; h < height; h++)
            in_pieces<most_pixels<V>()>(width, [&](int c, auto known) __attribute__((always_inline)) {
                correlate_block<known(), V>(x + x_first + h * x_row + c * x_pixel, x_pixel, taps.data(),
                                            (int)taps.size(), w, ws, start, y + y_first + h * y_row + c * y_pixel,
                                            y_pixel);
            });
    }

    // w: weights of all vectors; start: what each output channel begins with.
    void run(const float* x, const float* w, const float* start, float* y, int vectors) const {
        auto piece = [&](int v, auto known) __attribute__((always_inline)) {
            rows<known()>(x, w + v * taps.size() * LANES, start + v * LANES, y + v * LANES);
        };
        if (width > 7) in_pieces<2>(vectors, piece);
        else in_pieces<CONV_VECS>(vectors, piece);  // few pixels in a row: more channels fill the registers
    }
};

// g for J taps that lie side by side and V vectors of channels: + sum over pixels of x[tap] d.
template <int J, int V>
INLINE void weight_gradient_block(const float* x, size_t x_row, size_t x_pixel, const float* d, size_t d_row,
                                  size_t d_pixel, int height, int width, float* g, size_t gs) {
    Vec a[J][V];
    UNROLL for (int j = 0; j < J; j++) UNROLL for (int v = 0; v < V; v++) a[j][v] = zeros();
    for (int h = 0; h < height; h++) {
        const float *xr = x + h * x_row, *dr = d + h * d_row;
        for (int c = 0; c < width; c++, xr += x_pixel, dr += d_pixel) {
            Vec u[V];
            UNROLL for (int v = 0; v < V; v++) u[v] = load(dr + v * LANES);
            UNROLL for (int j = 0; j < J; j++) {
                Vec b = all(xr[j]);
                UNROLL for (int v = 0; v < V; v++) a[j][v] = fma(b, u[v], a[j][v]);
            }
        }
    }
    UNROLL for (int j = 0; j < J; j++) UNROLL for (int v = 0; v < V; v++) {
        float* to = g + v * gs + (size_t)j * LANES;
        store(to, load(to) + a[j][v]);
    }
}

struct Convolution {
    int inputs = 0, outputs = 0, kernel_h = 0, kernel_w = 0, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
    bool has_bias = false;
    size_t at = 0, bias_at = 0;  // where its weights begin among all
    Map x, y, d;                 // input with its border; output; gradient of the output, with the border it needs
    Correlation ahead;
    std::vector<Correlation> back;   // one for every phase of the stride
    std::vector<size_t> back_start;  // where the weights of each begin
    Buffer turned, nothing;          // weights as the gradient of the input wants them; zeros to start from

    void set(int in, int out, int kh, int kw, int sh, int sw, int ph, int pw, bool bias) {
        inputs = in, outputs = out, kernel_h = kh, kernel_w = kw, stride_h = sh, stride_w = sw, pad_h = ph, pad_w = pw;
        has_bias = bias;
    }
    int taps() const { return kernel_h * kernel_w * inputs; }
    size_t size() const { return (size_t)y.vectors() * taps() * LANES; }

    // The output for this input, or false where there is none.
    bool fit(const Map& input) {
        x = with_border(input, pad_h, pad_w);
        y.height = (input.height + 2 * pad_h - kernel_h) / stride_h + 1;
        y.width = (input.width + 2 * pad_w - kernel_w) / stride_w + 1;
        y.channels = outputs;
        y = padded(y);
        if (input.channels != inputs || input.height + 2 * pad_h < kernel_h || input.width + 2 * pad_w < kernel_w)
            return false;
        plan_ahead();
        plan_back();
        return true;
    }

    void plan_ahead() {
        for (int kh = 0; kh < kernel_h; kh++)
            for (int kw = 0; kw < kernel_w; kw++)
                for (int c = 0; c < inputs; c++) ahead.taps.push_back((int)(kh * x.row()) + kw * x.pixel + c);
        ahead.height = y.height;
        ahead.width = y.width;
        ahead.x_row = stride_h * x.row();
        ahead.x_pixel = (size_t)stride_w * x.pixel;
        ahead.y_row = y.row();
        ahead.y_pixel = y.pixel;
    }

    // Input pixel h takes from output pixel (h + pad - k) / stride for every k that leaves no remainder. So the input
    // pixels fall into `stride` phases, each with taps of its own, and each phase is a correlation of stride 1.
    struct Phase {
        int first, count, source;  // first input pixel, how many, and the output pixel that k = remainder points at
        std::vector<int> kernel;   // k of each tap; the i-th reads output pixel source - i
    };
    static std::vector<Phase> phases(int size, int kernel, int stride, int pad) {
        std::vector<Phase> all;
        for (int r = 0; r < stride; r++) {
            int first = ((r - pad) % stride + stride) % stride;
            if (first >= size) continue;
            Phase phase{first, (size - 1 - first) / stride + 1, (first + pad - r) / stride, {}};
            for (int k = r; k < kernel; k += stride) phase.kernel.push_back(k);
            all.push_back(phase);
        }
        return all;
    }
    // How far beyond an image of `size` output pixels the phases read.
    static int reach(const std::vector<Phase>& phases, int size) {
        int most = 0;
        for (const Phase& p : phases) {
            if (p.kernel.empty()) continue;
            int low = p.source - (int)p.kernel.size() + 1, high = p.source + p.count - 1;
            most = std::max(most, std::max(-low, high - (size - 1)));
        }
        return most;
    }

    void plan_back() {
        std::vector<Phase> tall = phases(x.height, kernel_h, stride_h, pad_h);
        std::vector<Phase> wide = phases(x.width, kernel_w, stride_w, pad_w);
        d = with_border(y, reach(tall, y.height), reach(wide, y.width));
        Map to = padded(x);
        size_t start = 0;
        for (const Phase& p : tall)
            for (const Phase& q : wide) {
                Correlation part;
                for (size_t i = 0; i < p.kernel.size(); i++)
                    for (size_t j = 0; j < q.kernel.size(); j++)
                        for (int c = 0; c < outputs; c++)
                            part.taps.push_back(-(int)(i * d.row()) - (int)j * d.pixel + c);
                part.height = p.count;
                part.width = q.count;
                part.x_first = d.at(p.source, q.source);
                part.x_row = d.row();
                part.x_pixel = d.pixel;
                part.y_first = to.at(p.first, q.first);
                part.y_row = stride_h * to.row();
                part.y_pixel = (size_t)stride_w * to.pixel;
                back.push_back(part);
                back_start.push_back(start);
                start += part.taps.size() * to.pixel;
            }
        turned.resize(start);
        nothing.resize(to.pixel);
    }

    // Weights for the gradient of the input: [vector of input channels][tap of the phase][lane].
    void turn(const float* w) {
        size_t part = 0;
        for (const Phase& p : phases(x.height, kernel_h, stride_h, pad_h))
            for (const Phase& q : phases(x.width, kernel_w, stride_w, pad_w)) {
                float* to = turned + back_start[part++];
                size_t count = p.kernel.size() * q.kernel.size() * outputs, tap = 0;
                for (int kh : p.kernel)
                    for (int kw : q.kernel)
                        for (int o = 0; o < outputs; o++, tap++) {
                            const float* from = w + (((size_t)(o / LANES) * kernel_h + kh) * kernel_w + kw) * inputs * LANES + o % LANES;
                            for (int c = 0; c < inputs; c++)
                                to[((c / LANES) * count + tap) * LANES + c % LANES] = from[(size_t)c * LANES];
                        }
            }
    }

    void forward(const float* input, const float* weights, float* output) const {
        ahead.run(input, weights + at, weights + bias_at, output, y.vectors());
    }

    // dx (without a border) from the gradient of the output, with the weights last turned.
    void backward(const float* gradient, float* dx) const {
        for (size_t i = 0; i < back.size(); i++)
            back[i].run(gradient, turned + back_start[i], nothing, dx, round_up(inputs, LANES) / LANES);
    }

    // g + the gradient of the weights, for one image.
    void weight_gradient(const float* input, const float* gradient, float* g) const {
        bool is_dense = x.pixel == inputs;  // then the taps of a kernel row lie side by side
        int runs = is_dense ? 1 : kernel_w, length = is_dense ? kernel_w * inputs : inputs;
        int rows_in_cache = std::max(1, 32768 / (int)(y.width * (2 * LANES + LANES) * sizeof(float)));
        for (int h = 0; h < y.height; h += rows_in_cache) {
            int rows = std::min(rows_in_cache, y.height - h);
            in_pieces<2>(y.vectors(), [&](int v, auto vecs) __attribute__((always_inline)) {
                constexpr int V = vecs();
                const float* d_from = gradient + d.at(h, 0) + v * LANES;
                for (int kh = 0; kh < kernel_h; kh++)
                    for (int run = 0; run < runs; run++) {
                        const float* x_from = input + (h * stride_h + kh) * x.row() + (size_t)run * x.pixel;
                        float* to = g + ((size_t)v * taps() + (kh * kernel_w + run) * inputs) * LANES;
                        in_pieces<most_pixels<V>()>(length, [&](int j, auto known) __attribute__((always_inline)) {
                            weight_gradient_block<known(), V>(x_from + j, stride_h * x.row(), (size_t)stride_w * x.pixel,
                                                              d_from, d.row(), d.pixel, rows, y.width,
                                                              to + (size_t)j * LANES, (size_t)taps() * LANES);
                        });
                    }
            });
        }
    }
};
