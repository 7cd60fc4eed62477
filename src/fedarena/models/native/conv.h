// Convolution: forward, gradient of its input, gradient of its weights.
#pragma once
#include "correlate.h"

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

struct Convolution : Window {
    int inputs = 0, outputs = 0;
    bool has_bias = false;
    size_t at = 0, bias_at = 0;      // where its weights begin among all
    Map x, y, d;                     // input and output, and the gradient of the output, with the borders they need
    Correlation forth;
    std::vector<Correlation> back;   // of the gradient of the input: one for every phase of the stride
    Buffer turned, nothing;          // weights as the gradient of the input wants them; zeros to start from

    size_t taps() const { return (size_t)kernel_h * kernel_w * inputs; }
    size_t size() const { return y.vectors() * taps() * LANES; }
    // Where a weight lies.
    size_t weight(int o, int kh, int kw, int c) const {
        return (o / LANES * taps() + forth.tap(kh, kw) + c) * LANES + o % LANES;
    }

    // Lay everything out for this input; false where there is no output.
    bool fit(const Map& input) {
        if (input.channels != inputs || !fits(input)) return false;
        y.channels = outputs;
        y.height = (input.height + 2 * pad_h - kernel_h) / stride_h + 1;
        y.width = (input.width + 2 * pad_w - kernel_w) / stride_w + 1;
        y = padded(y);
        forth.tall = axis(y.height, input.height, kernel_h, stride_h, pad_h);
        forth.wide = axis(y.width, input.width, kernel_w, stride_w, pad_w);
        forth.plan(input, y, 0, 0, 1, 1);
        x = forth.x;
        plan_back(padded(input));
        return true;
    }

    static Axis axis(int outputs, int size, int kernel, int stride, int pad) {
        Axis axis{outputs, size, stride, {}};
        for (int k = 0; k < kernel; k++) axis.offsets.push_back(k - pad);
        return axis;
    }

    // Input pixel h takes from output pixel (h + pad - k) / stride for every k that leaves no remainder. So the input
    // pixels fall into `stride` phases, each with places of the kernel of its own, and each phase is a correlation.
    struct Phase {
        int first;                // first input pixel
        std::vector<int> kernel;  // places of the kernel
        Axis axis;
    };
    std::vector<Phase> tall, wide;

    static std::vector<Phase> phases(int inputs, int outputs, int kernel, int stride, int pad) {
        std::vector<Phase> all;
        for (int first = 0; first < std::min(stride, inputs); first++) {
            Phase phase{first, {}, {(inputs - 1 - first) / stride + 1, outputs, 1, {}}};
            for (int k = kernel - 1; k >= 0; k--) {  // downwards, so that the offsets rise
                if ((first + pad - k) % stride) continue;
                phase.kernel.push_back(k);
                phase.axis.offsets.push_back((first + pad - k) / stride);
            }
            all.push_back(phase);
        }
        return all;
    }

    void plan_back(const Map& dx) {
        tall = phases(x.height, y.height, kernel_h, stride_h, pad_h);
        wide = phases(x.width, y.width, kernel_w, stride_w, pad_w);
        d = y;
        size_t weights = 0;
        for (const Phase& p : tall)
            for (const Phase& q : wide) {
                Correlation part;
                part.tall = p.axis;
                part.wide = q.axis;
                part.plan(y, dx, p.first, q.first, stride_h, stride_w);
                d.border_w = std::max(d.border_w, part.x.border_w);
                weights += part.taps.size() * dx.pixel;
                back.push_back(part);
            }
        for (Correlation& part : back) part.place(d);  // all phases read one image, with the widest border
        turned.resize(weights);
        nothing.resize(dx.pixel);
    }

    // Weights for the gradient of the input, phase by phase: [vector of input channels][tap of the phase][lane].
    void turn(const float* w) {
        float* to = turned;
        for (size_t i = 0; i < back.size(); i++) {
            const Phase &p = tall[i / wide.size()], &q = wide[i % wide.size()];
            size_t count = back[i].taps.size();
            for (size_t kh = 0; kh < p.kernel.size(); kh++)
                for (size_t kw = 0; kw < q.kernel.size(); kw++)
                    for (int o = 0; o < outputs; o++) {
                        const float* from = w + weight(o, p.kernel[kh], q.kernel[kw], 0);
                        float* there = to + (back[i].tap((int)kh, (int)kw) + o) * LANES;
                        for (int c = 0; c < inputs; c++) there[c / LANES * count * LANES + c % LANES] = from[c * LANES];
                    }
            to += count * round_up(inputs, LANES);
        }
    }

    void forward(const float* input, const float* weights, float* output) const {
        forth.run(input, weights + at, weights + bias_at, output, y.vectors());
    }

    // dx (without a border) from the gradient of the output, with the weights last turned.
    void backward(const float* gradient, float* dx) const {
        const float* w = turned;
        for (const Correlation& part : back) {
            part.run(gradient, w, nothing, dx, round_up(inputs, LANES) / LANES);
            w += part.taps.size() * round_up(inputs, LANES);
        }
    }

    // g + the gradient of the weights, for one image. Of the output so many rows at a time as stay in the first cache.
    void weight_gradient(const float* input, const float* gradient, float* g) const {
        int tile = std::max(1, 32768 / (int)(y.width * 3 * LANES * sizeof(float)));
        for (int h = 0; h < y.height; h += tile)
            in_pieces<2>(y.vectors(), [&](int v, auto known) __attribute__((always_inline)) {
                Range rows{h, std::min(h + tile, y.height)};
                for (int kh = 0; kh < kernel_h; kh++)
                    kernel_row_gradient<known()>(input, gradient + v * LANES, kh, rows, g + v * taps() * LANES);
            });
    }

    template <int V>
    INLINE_MEMBER void kernel_row_gradient(const float* input, const float* gradient, int kh, Range rows,
                                           float* g) const {
        // With few channels, and zeros beside the image, all taps of a kernel row lie side by side.
        bool is_joined = x.pixel == inputs && !forth.by_column && inputs < 2 * LANES;
        int length = is_joined ? kernel_w * inputs : inputs;
        Range inside = forth.tall.outputs_of(kh);
        rows = {std::max(rows.first, inside.first), std::min(rows.last, inside.last)};
        for (int kw = 0; kw < (is_joined ? 1 : kernel_w) && rows.count() > 0; kw++) {
            Range columns = is_joined ? Range{0, y.width} : forth.columns[kw];
            if (columns.count() <= 0) continue;
            const float* from = input + x.at(stride_h * rows.first + kh - pad_h, stride_w * columns.first + kw - pad_w);
            const float* d_from = gradient + d.at(rows.first, columns.first);
            float* to = g + forth.tap(kh, kw) * LANES;
            in_pieces<most_pixels<V>()>(length, [&](int j, auto known) __attribute__((always_inline)) {
                weight_gradient_block<known(), V>(from + j, stride_h * x.row(), (size_t)stride_w * x.pixel, d_from,
                                                  d.row(), d.pixel, rows.count(), columns.count(),
                                                  to + (size_t)j * LANES, taps() * LANES);
            });
        }
    }
};
