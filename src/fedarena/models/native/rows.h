// Rows as a data set has them, channel by channel: floats, or bytes with the number that each byte stands for.
#pragma once
#include "simd.h"

struct Rows {
    const void* data;
    const float* tables;  // 256 numbers a channel; null where the rows are floats
    int channels;
    size_t pixels;           // of a channel
    bool is_scaled;          // bytes stand for multiples of one number, in every channel
    float high = 0, low = 0;  // that number, in two parts: a product with both is rounded as a division would be

    Rows(const void* x, const float* numbers, int count, int size)
        : data(x), tables(numbers), channels(count), pixels(size) {
        is_scaled = tables != nullptr;
        if (!is_scaled) return;
        double step = tables[255] / 255.0;
        high = (float)step;
        low = (float)(step - high);
        for (int k = 0; k < 256; k += LANES) {
            alignas(64) float numbers[LANES];
            uint8_t bytes[LANES];
            for (int i = 0; i < LANES; i++) bytes[i] = (uint8_t)(k + i);
            store(numbers, scaled(bytes));
            for (int c = 0; c < channels; c++)
                is_scaled &= !std::memcmp(numbers, tables + 256 * c + k, sizeof numbers);
        }
    }
    INLINE_MEMBER Vec scaled(const uint8_t* bytes) const {
        Vec x = to_floats(load_bytes(bytes));
        return fma(x, all(high), x * all(low));
    }

    // A row that will be wanted soon: rows of a shuffled client lie all over the memory. Inlined by force: compilers drop
    // calls of functions that do nothing but fetch.
    INLINE_MEMBER void fetch(int64_t row) const {
        size_t size = channels * pixels * (tables ? 1 : sizeof(float));
        const char* x = static_cast<const char*>(data) + row * size;
        for (size_t i = 0; i < size; i += 64) _mm_prefetch(x + i, _MM_HINT_T1);
    }

    // Write pixels first..first + count of one channel of a row, `apart` from each other.
    void read(int64_t row, int channel, size_t first, size_t count, float* to, size_t apart) const {
        size_t from = ((size_t)row * channels + channel) * pixels + first, i = 0;
        if (!tables) {
            const float* x = static_cast<const float*>(data) + from;
            if (apart == 1) std::memcpy(to, x, count * sizeof(float));
            else
                for (; i < count; i++) to[i * apart] = x[i];
            return;
        }
        const uint8_t* x = static_cast<const uint8_t*>(data) + from;
        const float* table = tables + 256 * channel;
        if (apart == 1 && is_scaled)
            for (; i + LANES <= count; i += LANES) store(to + i, scaled(x + i));
        if (apart == 1)  // one by one: gather instructions take many times longer
            for (; i + 8 <= count; i += 8) UNROLL for (int k = 0; k < 8; k++) to[i + k] = table[x[i + k]];
        for (; i < count; i++) to[i * apart] = table[x[i]];
    }
};
