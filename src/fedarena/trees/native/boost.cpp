// The loops of boosted trees over rows, bins and candidates; trees/kernels.py says what the arguments are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

extern "C" {

// Without branches on values, which processors cannot predict.
static inline int32_t descended(const float* values, const float* tree, int32_t at, int64_t levels) {
    for (int64_t level = 0; level < levels; ++level) {
        const float* split = tree + 4 * static_cast<int64_t>(at);
        const bool inner = split[0] >= 0;
        const float value = values[inner ? static_cast<int64_t>(split[0]) : 0];
        const bool left = (value <= split[1]) | ((value != value) & (split[2] > 0));
        at = inner ? 2 * at + 2 - left : at;
    }
    return at;
}

void descend(const float* x, int64_t rows, int64_t columns, const float* tree, int32_t* node, int64_t levels) {
    for (int64_t row = 0; row < rows; ++row) node[row] = descended(x + row * columns, tree, node[row], levels);
}

// Sums wrap around like numpy's integers, hence unsigned. The rows of wanted nodes are listed first, without branches.
void add_sums(const float* x, int64_t rows, int64_t columns, const float* tree, int32_t* node, int64_t levels,
              const uint16_t* codes, const int64_t* first, const int64_t* build, int64_t wanted_nodes, int64_t number,
              int64_t nodes, const uint64_t* integers, int64_t width, uint64_t* sums) {
    constexpr int64_t BLOCK = 1024, MOST_NODES = 8191;
    int32_t slot_of[MOST_NODES];
    std::fill_n(slot_of, std::min(nodes, MOST_NODES), -1);
    for (int64_t slot = 0; slot < wanted_nodes; ++slot) {
        const int64_t wanted_node = build[2 * slot + 1];
        const bool exists = wanted_node >= 0 && wanted_node < std::min(nodes, MOST_NODES);
        if (build[2 * slot] == number && exists) slot_of[wanted_node] = static_cast<int32_t>(slot);
    }
    int64_t wanted[BLOCK], slots[BLOCK];
    for (int64_t start = 0; start < rows; start += BLOCK) {
        const int64_t end = start + BLOCK < rows ? start + BLOCK : rows;
        descend(x + start * columns, end - start, columns, tree, node + start, levels);
        int64_t count = 0;
        for (int64_t row = start; row < end; ++row) {
            const int32_t slot = slot_of[node[row]];
            wanted[count] = row;
            slots[count] = slot;
            count += slot >= 0;
        }
        for (int64_t i = 0; i < count; ++i) {
            const uint16_t* own = codes + wanted[i] * columns;
            uint64_t* into = sums + 2 * slots[i] * width;
            const uint64_t g = integers[2 * wanted[i]], h = integers[2 * wanted[i] + 1];
            for (int64_t column = 0; column < columns; ++column) {
                uint64_t* bin = into + 2 * (first[column] + own[column]);
                bin[0] += g;
                bin[1] += h;
            }
        }
    }
}

// As trees/gain.py computes it, operation by operation.
static inline float score(double g, double h, double lambda) {
    return h > 0 ? static_cast<float>(g * g) / static_cast<float>(h + lambda) : 0.0f;
}

void best_candidates(const int64_t* sums, const int64_t* totals, int64_t nodes, int64_t width, const int64_t* start,
                     const int64_t* last, const int64_t* missing, const uint8_t* both, int64_t candidates, double g_unit,
                     double h_unit, double lambda, double least_weight, int64_t* upto, int64_t* best, float* gains,
                     int64_t* lefts) {
    for (int64_t node = 0; node < nodes; ++node, sums += 2 * width, totals += 2) {
        upto[0] = upto[1] = 0;
        for (int64_t at = 0; at < 2 * width; ++at) upto[at + 2] = upto[at] + sums[at];
        const float whole = score(totals[0] * g_unit, totals[1] * h_unit, lambda);
        float top = -std::numeric_limits<float>::infinity();
        best[node] = lefts[2 * node] = lefts[2 * node + 1] = 0;
        int64_t last_g = 0, last_h = 0;
        for (int64_t one = 0; one < candidates; ++one) {
            const int64_t end = 2 * (last[one] + 1), from = 2 * start[one], hole = 2 * missing[one];
            int64_t g = upto[end] - upto[from], h = upto[end + 1] - upto[from + 1];
            g += both[one] ? sums[hole] : 0;
            h += both[one] ? sums[hole + 1] : 0;
            if (one > 0 && g == last_g && h == last_h) continue;  // as good as the candidate before, which comes first
            last_g = g;
            last_h = h;
            const double left_h = h * h_unit, right_h = (totals[1] - h) * h_unit;
            const double least = left_h < right_h ? left_h : right_h;
            const float gain = score(g * g_unit, left_h, lambda) + score((totals[0] - g) * g_unit, right_h, lambda) - whole;
            if (least >= least_weight && least > 0 && gain > top && std::isfinite(gain)) {
                top = gain;
                best[node] = one;
                lefts[2 * node] = g;
                lefts[2 * node + 1] = h;
            }
        }
        gains[node] = top;
    }
}
}
