// From a convolution's output to the next layer's input, and back: norm, pool and activation in one pass over an image.
#pragma once
#include "activation.h"
#include "norm.h"

struct Pool : Window {
    enum Kind { NONE, MAXIMUM, MEAN } kind = NONE;
    bool ceil = false;  // a last window may hang over the edge
    Map from, to;

    static int windows(int size, int kernel, int stride, int pad, bool ceil) {
        int count = (size + 2 * pad - kernel + (ceil ? stride - 1 : 0)) / stride + 1;
        return ceil && (count - 1) * stride >= size + pad ? count - 1 : count;  // a window must begin inside
    }

    // The output for this input, or false where there is none.
    bool fit(const Map& input) {
        from = to = input;
        if (kind == MEAN) to.height = to.width = 1;
        if (kind != MAXIMUM) return true;
        if (!fits(input)) return false;
        to.height = windows(input.height, kernel_h, stride_h, pad_h, ceil);
        to.width = windows(input.width, kernel_w, stride_w, pad_w, ceil);
        return kernel_h * kernel_w <= 256;  // the place of the maximum is kept in a byte
    }

    bool is_two_by_two() const {
        bool is_square = kernel_h == 2 && kernel_w == 2 && stride_h == 2 && stride_w == 2;
        return kind == MAXIMUM && is_square && !pad_h && !pad_w && !ceil;
    }
};

// The largest number so far, where in the window it stood, and what it was before the norm. As in torch the first of
// equals wins, and NaN wins over all.
struct Largest {
    Vec value, raw;
    Index place;
    INLINE_MEMBER void take(Vec t, Vec y, int at) {
        Mask better = both(not_at_most(t, value), is_number(value));
        value = choose(better, t, value);
        raw = choose(better, y, raw);
        place = choose(better, every(at), place);
    }
};

// Everything between y and the output, for one image at a time.
struct Finish {
    Pool pool;
    Activation activation;
    bool has_norm = false;

    // y -> output; for the way back, of every output the place of the maximum and the number before the norm.
    void forward(const float* y, const Norm::Set* norm, const Map& map, float* out, uint8_t* places,
                 float* raw) const {
        if (has_norm) forward_as<true>(y, norm, map, out, places, raw);
        else forward_as<false>(y, norm, map, out, places, raw);
    }

    template <bool NORM>
    INLINE_MEMBER static Vec normed(Vec y, const Norm::Set* norm, int c) {
        return NORM ? fma(load(norm->scale + c), y, load(norm->offset + c)) : y;
    }

    template <bool NORM>
    void forward_as(const float* y, const Norm::Set* norm, const Map& map, float* out, uint8_t* places,
                    float* raw) const {
        const Map &from = pool.from, &to = pool.to;
        if (pool.kind == Pool::MEAN) return mean<NORM>(y, norm, out + map.at(0, 0), raw);
        for (int h = 0; h < to.height; h++) {
            float* line = out + map.at(h, 0);
            size_t kept = to.at(h, 0);
            if (pool.is_two_by_two()) two_by_two<NORM>(y + from.at(2 * h, 0), norm, line, places + kept, raw + kept);
            else if (pool.kind == Pool::MAXIMUM) windows<NORM>(y, h, norm, line, places + kept, raw + kept);
            else
                for (int w = 0; w < to.width; w++)
                    for (int c = 0; c < to.pixel; c += LANES) {
                        size_t k = (size_t)w * to.pixel + c;
                        store(line + k, activation.of(normed<NORM>(load(y + kept + k), norm, c)));
                    }
        }
    }

    template <bool NORM>
    INLINE_MEMBER void keep(const Largest& best, size_t k, float* line, uint8_t* places, float* raw) const {
        store(line + k, activation.of(best.value));
        store_bytes(places + k, best.place);
        if (NORM) store(raw + k, best.raw);
    }

    template <bool NORM>
    void two_by_two(const float* y, const Norm::Set* norm, float* line, uint8_t* places, float* raw) const {
        const Map& to = pool.to;
        size_t pixel = to.pixel, row = pool.from.row();
        for (int w = 0; w < to.width; w++, y += 2 * pixel)
            for (int c = 0; c < to.pixel; c += LANES) {
                Vec first = load(y + c);
                Largest best{normed<NORM>(first, norm, c), first, every(0)};
                UNROLL for (int i = 1; i < 4; i++) {
                    Vec u = load(y + (i / 2) * row + (i % 2) * pixel + c);
                    best.take(normed<NORM>(u, norm, c), u, i);
                }
                keep<NORM>(best, w * pixel + c, line, places, raw);
            }
    }

    template <bool NORM>
    void windows(const float* y, int h, const Norm::Set* norm, float* line, uint8_t* places, float* raw) const {
        const Map &from = pool.from, &to = pool.to;
        for (int w = 0; w < to.width; w++)
            for (int c = 0; c < to.pixel; c += LANES) {
                Largest best{all(-INFINITY), zeros(), every(0)};
                bool is_first = true;
                each_place(h, w, [&](int place, int at_h, int at_w) {
                    Vec u = load(y + from.at(at_h, at_w) + c), t = normed<NORM>(u, norm, c);
                    if (is_first) best = Largest{t, u, every(place)};
                    else best.take(t, u, place);
                    is_first = false;
                });
                keep<NORM>(best, (size_t)w * to.pixel + c, line, places, raw);
            }
    }

    // Call f(place in the window, h, w) for what of a window lies inside the image.
    template <class F>
    INLINE_MEMBER void each_place(int h, int w, F f) const {
        for (int i = 0; i < pool.kernel_h; i++) {
            int at_h = h * pool.stride_h - pool.pad_h + i;
            if (at_h < 0 || at_h >= pool.from.height) continue;
            for (int j = 0; j < pool.kernel_w; j++) {
                int at_w = w * pool.stride_w - pool.pad_w + j;
                if (at_w >= 0 && at_w < pool.from.width) f(i * pool.kernel_w + j, at_h, at_w);
            }
        }
    }

    template <bool NORM>
    void mean(const float* y, const Norm::Set* norm, float* out, float* raw) const {
        const Map& from = pool.from;
        for (int c = 0; c < from.pixel; c += LANES) {
            Vec a = zeros();
            for (int p = 0; p < from.pixels(); p++) a = a + load(y + (size_t)p * from.pixel + c);
            a = a * all(1.0f / from.pixels());
            if (NORM) store(raw + c, a);
            store(out + c, activation.of(normed<NORM>(a, norm, c)));
        }
    }

    // The gradient of an output image goes back through the activation, in place. Its sums over pixels, and with a norm
    // those times (raw - mean), go to s and q.
    void gate(float* d, const Map& map, const float* out, const float* raw, const float* mean, float* s,
              float* q) const {
        if (has_norm) gate_as<true>(d, map, out, raw, mean, s, q);
        else gate_as<false>(d, map, out, raw, mean, s, q);
    }

    template <bool NORM>
    void gate_as(float* d, const Map& map, const float* out, const float* raw, const float* mean, float* s,
                 float* q) const {
        const Map& to = pool.to;
        for (int c = 0; c < to.pixel; c += LANES) {
            Vec centre = NORM ? load(mean + c) : zeros(), sum = zeros(), product = zeros();
            for (int h = 0; h < to.height; h++) {
                const float* z = out + map.at(h, 0) + c;
                size_t k = to.at(h, 0) + c;
                for (int w = 0; w < to.width; w++, k += to.pixel, z += to.pixel) {
                    Vec g = activation.back(load(d + k), load(z));
                    store(d + k, g);
                    sum = sum + g;
                    if (NORM) product = fma(g, load(raw + k) - centre, product);
                }
            }
            store(s + c, sum);
            if (NORM) store(q + c, product);
        }
    }

    // From the gated gradient to the gradient of y: each to the place of its maximum, and through the norm.
    void backward(const float* d, const uint8_t* places, const float* y, const Norm::Set* norm, const Map& map,
                  float* dy) const {
        if (has_norm) backward_as<true>(d, places, y, norm, map, dy);
        else backward_as<false>(d, places, y, norm, map, dy);
    }

    template <bool NORM>
    INLINE_MEMBER static Vec scaled(Vec g, const Norm::Set* norm, int c) {
        return NORM ? g * load(norm->scale + c) : g;
    }
    // What reaches a pixel of y that is no maximum.
    template <bool NORM>
    INLINE_MEMBER static Vec rest(const float* y, const Norm::Set* norm, int c) {
        return NORM ? fma(load(norm->pull + c), load(y + c), load(norm->push + c)) : zeros();
    }

    template <bool NORM>
    void backward_as(const float* d, const uint8_t* places, const float* y, const Norm::Set* norm, const Map& map,
                     float* dy) const {
        const Map &from = pool.from, &to = pool.to;
        if (pool.is_two_by_two()) return split_two_by_two<NORM>(d, places, y, norm, map, dy);
        float share = pool.kind == Pool::MEAN ? 1.0f / from.pixels() : 1.0f;
        for (int h = 0; h < from.height; h++)
            for (int w = 0; w < from.width; w++)
                for (int c = 0; c < from.pixel; c += LANES) {
                    const float* g = d + (pool.kind == Pool::MEAN ? 0 : from.at(h, w)) + c;
                    Vec other = rest<NORM>(y + (NORM ? from.at(h, w) : 0), norm, c);
                    if (pool.kind != Pool::MAXIMUM) other = other + scaled<NORM>(load(g) * all(share), norm, c);
                    store(dy + map.at(h, w) + c, other);
                }
        if (pool.kind != Pool::MAXIMUM) return;
        for (int h = 0; h < to.height; h++)
            for (int w = 0; w < to.width; w++)
                for (int c = 0; c < to.pixel; c += LANES) {
                    size_t k = to.at(h, w) + c;
                    Vec g = scaled<NORM>(load(d + k), norm, c);
                    Index place = load_bytes(places + k);
                    each_place(h, w, [&](int i, int at_h, int at_w) {
                        float* there = dy + map.at(at_h, at_w) + c;
                        store(there, load(there) + where_true(equal(place, every(i)), g));
                    });
                }
    }

    template <bool NORM>
    void split_two_by_two(const float* d, const uint8_t* places, const float* y, const Norm::Set* norm, const Map& map,
                          float* dy) const {
        const Map &from = pool.from, &to = pool.to;
        for (int h = 0; h < to.height; h++)
            for (int w = 0; w < to.width; w++) {
                size_t k = to.at(h, w);
                for (int c = 0; c < to.pixel; c += LANES) {
                    Vec g = scaled<NORM>(load(d + k + c), norm, c);
                    Index place = load_bytes(places + k + c);
                    UNROLL for (int i = 0; i < 4; i++) {
                        size_t at_y = from.at(2 * h + i / 2, 2 * w + i % 2);
                        store(dy + map.at(2 * h + i / 2, 2 * w + i % 2) + c,
                              rest<NORM>(y + (NORM ? at_y : 0), norm, c) + where_true(equal(place, every(i)), g));
                    }
                }
            }
        // An odd last row or column is in no window.
        for (int h = 0; h < from.height; h++)
            for (int w = h < 2 * to.height ? 2 * to.width : 0; w < from.width; w++)
                for (int c = 0; c < from.pixel; c += LANES)
                    store(dy + map.at(h, w) + c, rest<NORM>(y + (NORM ? from.at(h, w) : 0), norm, c));
    }
};
