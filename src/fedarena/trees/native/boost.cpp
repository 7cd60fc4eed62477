// The loops over all rows of boosted trees; trees/kernels.py says what the arguments are.
#include <cmath>
#include <cstdint>

extern "C" {

void descend(const float* x, int64_t rows, int64_t columns, const float* tree, int32_t* node, int64_t levels) {
    for (int64_t row = 0; row < rows; ++row) {
        const float* values = x + row * columns;
        int32_t at = node[row];
        for (int64_t level = 0; level < levels; ++level) {
            const float* split = tree + 4 * static_cast<int64_t>(at);
            if (split[0] < 0) break;
            const float value = values[static_cast<int64_t>(split[0])];
            const bool left = std::isnan(value) ? split[2] > 0 : value <= split[1];
            at = 2 * at + (left ? 1 : 2);
        }
        node[row] = at;
    }
}

// Sums wrap around like numpy's integers, hence unsigned.
void add_sums(const uint16_t* codes, int64_t rows, int64_t columns, const int64_t* first, const int32_t* slot_of,
              const int32_t* node, const uint64_t* integers, int64_t width, uint64_t* sums) {
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t slot = slot_of[node[row]];
        if (slot < 0) continue;
        const uint16_t* own = codes + row * columns;
        uint64_t* into = sums + 2 * slot * width;
        const uint64_t g = integers[2 * row], h = integers[2 * row + 1];
        for (int64_t column = 0; column < columns; ++column) {
            uint64_t* bin = into + 2 * (first[column] + own[column]);
            bin[0] += g;
            bin[1] += h;
        }
    }
}
}
