// How images lie in memory: row by row, pixel by pixel, the channels of a pixel together.
#pragma once
#include "simd.h"

struct Map {
    int channels = 0, height = 0, width = 0;
    int pixel = 0;                   // numbers from one pixel to the next: the channels, padded or not
    int border_h = 0, border_w = 0;  // pixels of zeros above and below, left and right

    size_t row() const { return (size_t)(width + 2 * border_w) * pixel; }
    size_t size() const { return (height + 2 * border_h) * row(); }
    size_t at(int h, int w) const { return (h + border_h) * row() + (size_t)(w + border_w) * pixel; }
    int pixels() const { return height * width; }
    int vectors() const { return pixel / LANES; }
};

// The same image in whole vectors: numbers beyond the channels are zero, and every layer keeps them so.
inline Map padded(Map map) {
    map.pixel = round_up(map.channels, LANES);
    map.border_h = map.border_w = 0;
    return map;
}

inline Map with_border(Map map, int h, int w) {
    map.border_h = h;
    map.border_w = w;
    return map;
}

// What a convolution or a pool looks through.
struct Window {
    int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
    bool fits(const Map& map) const { return map.height + 2 * pad_h >= kernel_h && map.width + 2 * pad_w >= kernel_w; }
};

// One image for every row of a batch.
struct Images {
    float* data = nullptr;
    size_t step = 0;
    Map map;
    float* of(int b) const { return data + b * step; }
};
