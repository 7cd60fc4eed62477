// Sums over taps for every pixel of an image: a convolution, and the gradient of its input.
//
// A tap is one number that an output pixel reads: a place of the kernel and a channel. The offsets of the taps are
// data, so that one piece of code serves every kernel size, stride and padding; with two vectors of output channels and
// a dozen pixels in registers it runs at the speed of the multipliers. Taps that fall outside the image are left out
// where that pays. Weights lie as [vector of output channels][tap][lane].
#pragma once
#include <algorithm>
#include <vector>

#include "image.h"

// Pixels of a register block with V vectors each, within the registers there are.
template <int V>
constexpr int most_pixels() {
    return std::min(16, (REGISTERS - 1 - V) / V);
}
constexpr int MOST_VECS = REGISTERS == 32 ? 4 : 2;

// y for P pixels and V vectors of channels: start (or, if null, what y holds) + sum over taps of x[tap] w[tap].
template <int P, int V>
INLINE void correlate_block(const float* x, size_t step, const int32_t* taps, int count, const float* w, size_t ws,
                            const float* start, float* y, size_t y_step) {
    Vec a[P][V];
    UNROLL for (int p = 0; p < P; p++) UNROLL for (int v = 0; v < V; v++)
        a[p][v] = load((start ? start : y + p * y_step) + v * LANES);
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

// The same with one vector of channels, for a kernel K wide that moves by one pixel: each number that is read serves K
// pixels. With one vector the first form would wait for its loads, one for every product. Taps come in `rows` of the
// kernel, K times `depth` each.
template <int K, int P>
INLINE void slide_block(const float* x, size_t step, const int32_t* taps, int rows, int depth, const float* w,
                        const float* start, float* y, size_t y_step) {
    Vec a[P];
    UNROLL for (int p = 0; p < P; p++) a[p] = load(start);
    for (int r = 0; r < rows; r++, taps += K * depth, w += (size_t)K * depth * LANES)
        for (int c = 0; c < depth; c++) {
            Vec u[K];
            UNROLL for (int k = 0; k < K; k++) u[k] = load(w + (size_t)(k * depth + c) * LANES);
            const float* from = x + taps[c];
            UNROLL for (int q = 0; q < P + K - 1; q++) {
                Vec b = all(from[(q % 3) * step]);
                UNROLL for (int k = 0; k < K; k++) if (q - k >= 0 && q - k < P) a[q - k] = fma(b, u[k], a[q - k]);
                if (q % 3 == 2) from += 3 * step;
            }
        }
    UNROLL for (int p = 0; p < P; p++) store(y + p * y_step, a[p]);
}

// Which inputs an output reads along one axis: output o reads input step o + offset for each of the offsets, which
// rise by one. Those outside of 0..size are zero.
struct Axis {
    int outputs = 0, size = 0, step = 1;
    std::vector<int> offsets;

    int kernel() const { return (int)offsets.size(); }
    bool is_inside(int o, int k) const { return step * o + offsets[k] >= 0 && step * o + offsets[k] < size; }
    // The places of the kernel that are inside for an output, and the outputs for which a place is: from first to last.
    Range kernel_of(int o) const {
        return range(kernel(), [&](int k) { return is_inside(o, k); });
    }
    Range outputs_of(int k) const {
        return range(outputs, [&](int o) { return is_inside(o, k); });
    }
    template <class F>
    static Range range(int count, F is_in) {
        Range r{0, count};
        while (r.first < count && !is_in(r.first)) r.first++;
        while (r.last > r.first && !is_in(r.last - 1)) r.last--;
        return r;
    }
    // Zeros that must stand before and behind the inputs for all places to be read by all outputs.
    int border() const {
        int most = 0;
        for (int k = 0; k < kernel(); k++)
            most = std::max({most, -offsets[k], step * (outputs - 1) + offsets[k] - (size - 1)});
        return most;
    }
    // The part of all reads that falls outside.
    double waste() const {
        double inside = 0;
        for (int k = 0; k < kernel(); k++) inside += outputs_of(k).count();
        return kernel() ? 1 - inside / (kernel() * outputs) : 0;
    }
};

// A sum over taps for every pixel of an image. Rows of the kernel that fall outside are always left out. Columns are
// left out by going over the output once for each column of the kernel; else zeros are read there.
struct Correlation {
    Axis tall, wide;
    int depth = 0;  // channels that are read
    bool by_column = false;
    Map x;                                      // what it reads, with a border unless it goes by columns
    size_t y_first = 0, y_row = 0, y_pixel = 0;  // where it writes
    std::vector<int32_t> taps;
    std::vector<Range> kernel_rows;  // rows of the kernel that are inside, for each row of the output
    std::vector<Range> columns;      // columns of the output that are inside, for each column of the kernel

    void plan(const Map& input, const Map& output, int first_h, int first_w, int apart_h, int apart_w) {
        depth = input.channels;
        // A pass costs a load and a store of each sum, worth some taps.
        by_column = wide.waste() * tall.kernel() * depth > COST_OF_A_PASS;
        y_first = output.at(first_h, first_w);
        y_row = apart_h * output.row();
        y_pixel = (size_t)apart_w * output.pixel;
        for (int h = 0; h < tall.outputs; h++) kernel_rows.push_back(tall.kernel_of(h));
        for (int j = 0; j < wide.kernel(); j++) columns.push_back(wide.outputs_of(j));
        place(with_border(input, 0, by_column ? 0 : wide.border()));
    }
    static constexpr double COST_OF_A_PASS = 4;

    // What it reads lies like this, with as much of a border as it wants or more.
    void place(const Map& input) {
        x = input;
        taps.resize((size_t)tall.kernel() * wide.kernel() * depth);
        for (int i = 0; i < tall.kernel(); i++)
            for (int j = 0; j < wide.kernel(); j++)
                for (int c = 0; c < depth; c++)
                    taps[tap(i, j) + c] = tall.offsets[i] * (int)x.row() + wide.offsets[j] * x.pixel + c;
    }

    // Where the taps of a place in the kernel begin.
    size_t tap(int i, int j) const {
        return (size_t)(by_column ? j * tall.kernel() + i : i * wide.kernel() + j) * depth;
    }

    // w: weights of all vectors; start: what each output channel begins with.
    void run(const float* input, const float* w, const float* start, float* y, int vectors) const {
        auto piece = [&](int v, auto known) __attribute__((always_inline)) {
            const float* from = w + v * taps.size() * LANES;
            if (by_column) run_by_column<known()>(input, from, start + v * LANES, y + v * LANES);
            else run_by_row<known()>(input, from, start + v * LANES, y + v * LANES);
        };
        if (wide.outputs > 7) in_pieces<2>(vectors, piece);
        else in_pieces<MOST_VECS>(vectors, piece);  // few pixels in a row: more channels fill the registers
    }

    template <int V>
    INLINE_MEMBER void run_by_row(const float* input, const float* w, const float* start, float* y) const {
        for (int h = 0; h < tall.outputs; h++) {
            Range k = kernel_rows[h];
            if (V == 1 && can_slide()) {
                slide_row(input, h, k, w, start, y);
                continue;
            }
            int count = k.count() * wide.kernel() * depth;
            columns_of_row<V>(input, h, {0, wide.outputs}, tap(k.first, 0), count, w, start, y);
        }
    }

    template <int V>
    INLINE_MEMBER void run_by_column(const float* input, const float* w, const float* start, float* y) const {
        for (int h = 0; h < tall.outputs; h++) {
            columns_of_row<V>(input, h, {0, wide.outputs}, 0, 0, w, start, y);
            Range k = kernel_rows[h];
            for (int j = 0; j < wide.kernel(); j++)
                columns_of_row<V>(input, h, columns[j], tap(k.first, j), k.count() * depth, w, nullptr, y);
        }
    }

    bool can_slide() const { return wide.step == 1 && (wide.kernel() == 3 || wide.kernel() == 5); }
    void slide_row(const float* input, int h, Range k, const float* w, const float* start, float* y) const {
        size_t first = tap(k.first, 0);
        auto with_kernel = [&](auto kernel) __attribute__((always_inline)) {
            constexpr int K = kernel();
            constexpr int MOST = std::min(16, REGISTERS - 1 - K);
            in_pieces<MOST>(wide.outputs, [&](int c, auto known) __attribute__((always_inline)) {
                slide_block<K, known()>(input + x.at(tall.step * h, c), x.pixel, taps.data() + first, k.count(), depth,
                                        w + first * LANES, start, y + y_first + h * y_row + c * y_pixel, y_pixel);
            });
        };
        if (wide.kernel() == 3) with_kernel(std::integral_constant<int, 3>());
        else with_kernel(std::integral_constant<int, 5>());
    }

    // Some taps for some pixels of a row.
    template <int V>
    INLINE_MEMBER void columns_of_row(const float* input, int h, Range w_range, size_t first, int count, const float* w,
                                      const float* start, float* y) const {
        size_t step = (size_t)wide.step * x.pixel;
        in_pieces<most_pixels<V>()>(w_range.count(), [&](int c, auto known) __attribute__((always_inline)) {
            int column = w_range.first + c;
            correlate_block<known(), V>(input + x.at(tall.step * h, wide.step * column), step, taps.data() + first,
                                        count, w + first * LANES, taps.size() * LANES, start,
                                        y + y_first + h * y_row + column * y_pixel, y_pixel);
        });
    }
};
