// Local SGD of a stack of layers with a loss on top, many steps in one call; and what it makes of rows.
//
// Python translates the layers (models/compiled.py), loads weights and corrections, and hands over rows with the order in
// which they come. Built once for AVX-512 and once for AVX2; which one runs is decided when it is loaded.
//
// A program is the shape of a row (channels, height, width) and ten numbers a layer, the kind first, unused ones last:
//   0 linear        inputs, outputs, has bias
//   1 convolution   inputs, outputs, kernel height and width, stride h w, padding h w, has bias
//   2 batch norm    eps, momentum
//   3 group norm    eps, groups
//   4 max-pool      kernel h w, stride h w, padding h w, ceil
//   5 global mean   (AdaptiveAvgPool2d(1))
//   6 ReLU
//   7 ELU           alpha
//   8 flatten
//   9 dropout       (of the inputs of the linear layer that comes next; its masks come with the rows)
// A row of plain numbers has the shape (numbers, 1, 1). The flat vector holds the parameters in the order of the modules,
// weights of convolutions channels-last (outputs, height, width, inputs). Buffers are, for every batch norm in turn, its
// running mean and its running variance.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "block.h"
#include "rows.h"
#include "stack.h"
#include "streams.h"
#include "sums.h"

namespace {

enum Kind { LINEAR, CONVOLUTION, BATCH_NORM, GROUP_NORM, MAX_POOL, GLOBAL_MEAN, RELU, ELU, FLATTEN, DROPOUT };
enum Loss { SOFTMAX, SQUARED, ABSOLUTE, HUBER, LOGISTIC };  // the numbers of models/losses.py
constexpr int NUMBERS = 10;
constexpr int AT_ONCE = 64;  // rows that are evaluated together: what they need of memory is little, and stays near
constexpr int AHEAD = 64;  // rows of the next batch that are fetched while this one is at work

// A vector as long as the weights that may be missing.
struct Optional {
    Buffer numbers;
    bool is_there = false;
    float* or_null() { return is_there ? (float*)numbers : nullptr; }
};

// Batches to come: the rows of each in `order`, behind each other, how many there are, and the learning rate.
struct Plan {
    Rows rows;
    const void* labels;          // the class of each row (int64), or a float for each of its outputs
    const float* row_weights;    // or null
    const int64_t* order;
    const float* class_weights;  // or null
    bool normalise;
    const int32_t* sizes;
    const float* rates;
    int left;  // steps
    const float* masks = nullptr;  // for a stack that drops inputs: a row's numbers for each row, layer by layer
    int masked = 0;                // numbers of a row

    void next() {
        masks += (size_t)*sizes * masked;
        order += *sizes++;
        rates++;
        left--;
    }
    // Row b of the batch after this one will be wanted soon.
    INLINE_MEMBER void fetch_next(int b) const {
        if (left < 2 || b >= std::min(sizes[1], AHEAD)) return;
        int64_t row = order[sizes[0] + b];
        rows.fetch(row);
        _mm_prefetch((const char*)(static_cast<const int64_t*>(labels) + row), _MM_HINT_T0);
    }
    int64_t label(int b) const { return static_cast<const int64_t*>(labels)[order[b]]; }
    const float* targets(int b, int outputs) const { return static_cast<const float*>(labels) + order[b] * outputs; }
    double weight(int b) const {
        return (class_weights ? class_weights[label(b)] : 1.0) * (row_weights ? row_weights[order[b]] : 1.0);
    }
};

struct Network {
    Map input;
    std::vector<std::unique_ptr<Block>> blocks;
    Stack stack;
    Buffer weights, gradient, loose;  // gradient: of the blocks; loose: of the last block's output, without a stack
    Optional velocity, centre, shift, beside, anchor;
    float momentum = 0, decay = 0, mu = 0;
    size_t size = 0, block_size = 0;
    Loss kind = SOFTMAX;
    int capacity = 0, classes = 0, lowest = 0;  // lowest: the first block with weights; nothing goes back below it

    // ---- From a program to layers ----

    // Take the layers one by one; one that does not fit into the block at hand begins another.
    bool build(const double* program, int count) {
        std::unique_ptr<Block> open;
        Map map = input;
        bool is_flat = false, drops = false;
        auto close = [&] {
            if (!open) return true;
            if (!open->fit(map, size)) return false;
            map = open->out();
            blocks.push_back(std::move(open));
            return true;
        };
        for (int i = 0; i < count; i++, program += NUMBERS) {
            auto kind = (Kind)(int)program[0];
            bool is_start = blocks.empty() && !open && stack.layers.empty();
            bool is_pointwise = kind == RELU || kind == ELU;
            if (is_start && input.pixels() == 1 && kind == LINEAR) is_flat = true;  // rows of plain numbers
            if (drops && kind != LINEAR) return false;
            if (kind == FLATTEN) {
                is_flat = true;
            } else if (kind == DROPOUT) {
                if (!is_flat) return false;
                drops = true;
            } else if (kind == LINEAR) {
                if (!is_flat || !close() || !add_linear(program, map, drops)) return false;
                drops = false;
            } else if (!stack.layers.empty()) {
                if (!activate(program, stack.layers.back()->activation)) return false;
            } else if (is_flat && !is_pointwise) {
                return false;
            } else if (!open || !add(*open, program)) {
                if (!close()) return false;
                open = std::make_unique<Block>();
                if (!add(*open, program)) return false;
            }
        }
        return is_flat && !drops && close() && finish(map);
    }

    static bool activate(const double* program, Activation& activation) {
        if (activation.kind || (program[0] != RELU && program[0] != ELU)) return false;
        activation.kind = program[0] == RELU ? Activation::RELU : Activation::ELU;
        activation.alpha = program[0] == ELU ? (float)program[1] : 0;
        return activation.alpha >= 0;  // else it is not monotone, and its slope is not known from its output
    }

    // Whether a layer can be added to a block: convolution, norm, pool and activation stand in this order, but a
    // max-pool may come before or after an activation, which never decreases.
    static bool add(Block& block, const double* p) {
        auto kind = (Kind)(int)p[0];
        if (kind == RELU || kind == ELU) return activate(p, block.finish.activation);
        if (block.has_pool() || (block.has_activation() && kind != MAX_POOL)) return false;
        if (kind == CONVOLUTION) {
            if (block.has_weights()) return false;
            block.conv = std::make_unique<Convolution>();
            static_cast<Window&>(*block.conv) = window(p + 3);
            block.conv->inputs = (int)p[1];
            block.conv->outputs = (int)p[2];
            block.conv->has_bias = p[9] != 0;
        } else if (kind == BATCH_NORM || kind == GROUP_NORM) {
            if (block.has_norm()) return false;
            block.norm.kind = kind == BATCH_NORM ? Norm::BATCH : Norm::GROUP;
            block.norm.eps = p[1];
            if (kind == BATCH_NORM) block.norm.momentum = p[2];
            else block.norm.groups = (int)p[2];
        } else if (kind == MAX_POOL) {
            static_cast<Window&>(block.finish.pool) = window(p + 1);
            block.finish.pool.kind = Pool::MAXIMUM;
            block.finish.pool.ceil = p[7] != 0;
        } else if (kind == GLOBAL_MEAN) {
            block.finish.pool.kind = Pool::MEAN;
        } else {
            return false;
        }
        return true;
    }
    static Window window(const double* p) {
        return {(int)p[0], (int)p[1], (int)p[2], (int)p[3], (int)p[4], (int)p[5]};
    }

    bool add_linear(const double* p, Map& map, bool drops) {
        auto layer = std::make_unique<Dense>();
        layer->inputs = (int)p[1];
        layer->outputs = (int)p[2];
        layer->has_bias = p[3] != 0;
        if (layer->inputs != map.channels * map.height * map.width) return false;
        layer->drops = drops;
        layer->from = map;
        stack.masked += drops ? layer->inputs : 0;
        block_size = stack.layers.empty() ? size : block_size;
        layer->fit(map.height * map.width * map.pixel, size);
        map.channels = map.pixel = layer->outputs;
        map.height = map.width = 1;
        stack.layers.push_back(std::move(layer));
        return true;
    }

    bool finish(const Map& map) {
        if (map.height != 1 || map.width != 1) return false;
        if (stack.layers.empty()) block_size = size;
        else if (stack.layers.back()->activation.kind) return false;
        classes = map.channels;
        stack.logit_stride = round_up(classes + 1, LANES);
        while (lowest < (int)blocks.size() && !blocks[lowest]->has_weights()) lowest++;
        stack.has_below = lowest < (int)blocks.size();
        weights.resize(size);
        gradient.resize(block_size);
        return size > 0;
    }

    // Working memory for so many rows, and who hands what to whom.
    void reserve(int rows) {
        if (rows <= capacity) return;
        capacity = rows;
        stack.reserve(rows);
        for (auto& block : blocks) block->reserve(rows);
        for (size_t i = 0; i < blocks.size(); i++) {
            Block& block = *blocks[i];
            if (i + 1 < blocks.size()) {
                Block& next = *blocks[i + 1];
                block.output = {next.x, next.in.size(), next.in};
                block.arrived.resize(rows * block.out().size());
                block.gradient = {block.arrived, block.out().size(), block.out()};
            } else if (!stack.layers.empty()) {
                Dense& next = *stack.layers[0];
                block.output = {next.x, (size_t)next.n, block.out()};
                block.gradient = {next.dx, (size_t)next.n, block.out()};
            } else {
                loose.resize(rows * block.out().size());
                block.output = {stack.logits, (size_t)stack.logit_stride, block.out()};
                block.gradient = {loose, block.out().size(), block.out()};
            }
        }
    }

    // ---- Between torch's order of weights and ours ----

    // Call f(where in the flat vector, where among ours, how many, how far apart among ours) for every run of weights.
    template <class F>
    void each_run(F f) const {
        size_t flat = 0;
        auto run = [&](size_t ours, size_t count, size_t apart) {
            f(flat, ours, count, apart);
            flat += count;
        };
        for (const auto& block : blocks) {
            if (block->conv) {
                const Convolution& conv = *block->conv;
                for (int o = 0; o < conv.outputs; o++)
                    for (int kh = 0; kh < conv.kernel_h; kh++)
                        for (int kw = 0; kw < conv.kernel_w; kw++)
                            run(conv.at + conv.weight(o, kh, kw, 0), conv.inputs, LANES);
                if (conv.has_bias) run(conv.bias_at, conv.outputs, 1);
            }
            if (block->has_norm()) {
                run(block->norm.gamma_at, block->y.channels, 1);
                run(block->norm.beta_at, block->y.channels, 1);
            }
        }
        Map map = blocks.empty() ? input : blocks.back()->out();
        for (const auto& layer : stack.layers) {
            for (int o = 0; o < layer->outputs; o++) {
                size_t row = layer->at + (size_t)o * layer->n;
                if (map.pixels() == 1) run(row, map.channels, 1);
                else  // torch flattens channel by channel
                    for (int c = 0; c < map.channels; c++) run(row + c, map.pixels(), map.pixel);
            }
            if (layer->has_bias) run(layer->at + layer->wide, layer->outputs, layer->n);
            map = Map{layer->outputs, 1, 1, layer->outputs};
        }
    }
    void pack(const float* flat, Optional& to) const {
        to.is_there = flat != nullptr;
        if (!to.is_there) return;
        to.numbers.resize(size);
        pack(flat, to.numbers);
    }
    void pack(const float* flat, float* packed) const {
        std::memset(packed, 0, size * sizeof(float));
        each_run([&](size_t from, size_t to, size_t count, size_t apart) {
            if (apart == 1) std::memcpy(packed + to, flat + from, count * sizeof(float));
            else
                for (size_t i = 0; i < count; i++) packed[to + i * apart] = flat[from + i];
        });
    }
    void unpack(const float* packed, float* flat) const {
        each_run([&](size_t to, size_t from, size_t count, size_t apart) {
            if (apart == 1) std::memcpy(flat + to, packed + from, count * sizeof(float));
            else
                for (size_t i = 0; i < count; i++) flat[to + i] = packed[from + i * apart];
        });
    }

    // ---- A step ----

    // One row of the data as the first layer wants it.
    void take_row(const Rows& rows, int64_t row, int b) {
        if (blocks.empty()) {
            Dense& first = *stack.layers[0];
            float* x = first.x + (size_t)b * first.n;
            for (int c = 0; c < rows.channels; c++) rows.read(row, c, 0, rows.pixels, x + c * rows.pixels, 1);
            return;
        }
        const Map& map = blocks[0]->in;
        float* image = blocks[0]->x + b * map.size();
        for (int c = 0; c < map.channels; c++)
            for (int h = 0; h < map.height; h++)
                rows.read(row, c, (size_t)h * map.width, map.width, image + map.at(h, 0) + c, map.pixel);
    }

    // Output b of block i, at these weights. A row goes through all blocks at once, while it is in the cache, up to a
    // batch norm.
    void produce(int i, int b, const Rows& rows, int64_t row, const float* w) {
        if (i < 0) return take_row(rows, row, b);
        if (!blocks[i]->is_barrier()) {
            produce(i - 1, b, rows, row, w);
            blocks[i]->convolve(b, w);
        }
        blocks[i]->emit(b);
    }

    // The logits of a batch, whose rows take the places from `first` on in the working memory, at these weights.
    void forward(const Plan& plan, int first, const float* w) {
        int last = (int)blocks.size() - 1, count = *plan.sizes;
        for (int i = 0; i <= last; i++) {
            if (!blocks[i]->is_barrier()) continue;
            blocks[i]->norm.start();
            for (int b = 0; b < count; b++) {
                produce(i - 1, b, plan.rows, plan.order[b], w);
                blocks[i]->convolve(b, w);
            }
            blocks[i]->norm.settle(count, w);
        }
        for (int b = 0; b < count; b++) {
            produce(last, first + b, plan.rows, plan.order[b], w);
            plan.fetch_next(b);  // row by row: so many at once would have to wait for each other
        }
        stack.forward(w, first, count);
    }

    // The mean loss of a batch that takes the places from `first` on; its gradient, times `sign`, goes to the last layer.
    double loss(const Plan& plan, int first, float sign) {
        int rows = *plan.sizes;
        bool is_stack = !stack.layers.empty();
        float* gradients = is_stack ? (float*)stack.layers.back()->dt : (float*)loose;
        size_t class_step = is_stack ? stack.capacity : 1, row_step = is_stack ? 1 : blocks.back()->out().size();
        double mass = 0, total = 0;
        for (int b = 0; b < rows; b++) mass += plan.weight(b);
        if (plan.class_weights && !plan.normalise) mass = rows;
        if (mass == 0) mass = 1;  // all weights are 0: the batch teaches nothing
        for (int b = 0; b < rows; b++) {
            const float* z = stack.logits + (size_t)(first + b) * stack.logit_stride;
            float* d = gradients + (first + b) * row_step;
            float part = (float)(plan.weight(b) / mass);
            double value = kind == SOFTMAX ? cross_entropy(z, plan.label(b), d, class_step)
                                           : errors(z, plan.targets(b, classes), d, class_step);
            total += part * value;
            for (int c = 0; c < classes; c++) d[c * class_step] = sign * part * d[c * class_step];
        }
        return total;
    }

    // Softmax cross-entropy of one row, and its slopes.
    double cross_entropy(const float* z, int64_t label, float* d, size_t step) const {
        float most = z[0], sum = 0;
        for (int c = 1; c < classes; c++) most = z[c] > most ? z[c] : most;
        for (int c = 0; c < classes; c++) {
            float e = std::exp(z[c] - most);
            d[c * step] = e;
            sum += e;
        }
        for (int c = 0; c < classes; c++) d[c * step] = d[c * step] / sum - (c == label);
        return std::log((double)sum) - (double)(z[label] - most);
    }

    // The mean over the outputs of one row of a loss of each, and its slopes.
    double errors(const float* z, const float* targets, float* d, size_t step) const {
        double total = 0;
        for (int c = 0; c < classes; c++) {
            float error = z[c] - targets[c], size = std::abs(error), slope, value;
            if (kind == SQUARED) {
                value = error * error;
                slope = 2 * error;
            } else if (kind == ABSOLUTE) {
                value = size;
                slope = (error > 0) - (error < 0);
            } else if (kind == HUBER) {
                value = size <= 1 ? 0.5f * error * error : size - 0.5f;
                slope = size <= 1 ? error : (error > 0) - (error < 0);
            } else {
                float small = std::exp(-std::abs(z[c]));
                value = std::max(z[c], 0.0f) - z[c] * targets[c] + std::log1p(small);
                slope = (z[c] >= 0 ? 1 : small) / (1 + small) - targets[c];
            }
            total += value;
            d[c * step] = slope / classes;
        }
        return total / classes;
    }

    // The gradient of output b of block i has arrived, which was computed at these weights.
    void descend(int i, int b, const float* w) {
        blocks[i]->gate(b, w, gradient);
        if (!blocks[i]->is_barrier()) pass(i, b, w);
    }
    void pass(int i, int b, const float* w) {
        blocks[i]->backward(b, gradient, i > lowest ? blocks[i - 1]->gradient.of(b) : nullptr);
        if (i > lowest) descend(i - 1, b, w);
    }

    // Adds to the gradient what rows first..first + rows say.
    void descend_all(int first, int rows, const float* w) {
        int last = (int)blocks.size() - 1;
        for (int i = lowest + 1; i <= last; i++)
            if (blocks[i]->conv) blocks[i]->conv->turn(w + blocks[i]->conv->at);
        for (int b = first; b < first + rows; b++) descend(last, b, w);
        for (int i = last; i >= lowest; i--) {
            if (!blocks[i]->is_barrier()) continue;
            blocks[i]->norm.settle_back(rows, gradient);
            for (int b = 0; b < rows; b++) pass(i, b, w);
        }
    }

    void backward(int rows, int anchored, const Rule& rule) {
        stack.backward(weights, anchor.numbers, rows, anchored, rule);
        if (!stack.has_below) return;
        gradient.clear();
        descend_all(0, rows, weights);
        if (anchored) descend_all(rows, anchored, anchor.numbers);
        update(weights, gradient, block_size, rule);
    }

    static void update(float* w, const float* g, size_t count, const Rule& rule) {
        with_form(rule, [&](auto form) __attribute__((always_inline)) {
            for (size_t i = 0; i < count; i += LANES) store(w + i, updated<form()>(load(w + i), load(g + i), rule, i));
        });
    }

    // A batch norm over one number has no variance; torch refuses it too.
    bool can_take(int rows) const {
        for (const auto& block : blocks)
            if (block->is_barrier() && rows * block->y.pixels() == 1) return false;
        return true;
    }

    // One step; the mean loss of its batch before it.
    double step(const Plan& plan) {
        int count = *plan.sizes, anchored = anchor.is_there ? count : 0;
        reserve(count + anchored);
        Rule rule{*plan.rates, momentum, decay, mu,
                  centre.or_null(), shift.or_null(), beside.or_null(), velocity.or_null()};
        stack.masks = plan.masks;
        forward(plan, 0, weights);
        double mean = loss(plan, 0, 1.0f);
        if (anchored) {
            forward(plan, count, anchor.numbers);
            loss(plan, count, -1.0f);
        }
        backward(count, anchored, rule);
        return mean;
    }

    // Logits of the first so many rows, as they are evaluated: batch norms go by what they remember, nothing is dropped.
    // A row's do not depend on those that come with it.
    void predict(const Rows& rows, int count, float* to) {
        for (auto& block : blocks)
            if (block->has_batch_norm()) block->norm.recall(weights);
        stack.masks = nullptr;
        for (int first = 0; first < count; first += AT_ONCE) {
            int some = std::min(AT_ONCE, count - first);
            reserve(some);
            for (int b = 0; b < some; b++) produce((int)blocks.size() - 1, b, rows, first + b, weights);
            stack.forward(weights, 0, some);
            for (int b = 0; b < some; b++, to += classes)
                std::memcpy(to, stack.logits + (size_t)b * stack.logit_stride, classes * sizeof(float));
        }
        for (auto& block : blocks) block->norm.recalls = false;
    }

    // The next so many steps of a plan; returns how many could be made.
    int train(Plan& plan, int steps, double* losses) {
        for (int s = 0; s < steps; s++, plan.next()) {
            if (!can_take(*plan.sizes)) return s;
            losses[s] = step(plan);
        }
        return steps;
    }
};

}  // namespace

extern "C" {

// Null where the layers are not known, or not in an order that is.
void* fedarena_build(const double* program, int layers, int channels, int height, int width, int loss) {
    auto net = std::make_unique<Network>();
    net->kind = (Loss)loss;
    net->input = Map{channels, height, width, channels};
    return net->build(program, layers) ? net.release() : nullptr;
}

void fedarena_free(void* handle) { delete static_cast<Network*>(handle); }

// Whether rows can be evaluated a second time, at an anchor. Batch norms would have to remember two batches, and what is
// dropped is not the same twice.
int fedarena_can_anchor(void* handle) {
    auto* net = static_cast<Network*>(handle);
    for (const auto& block : net->blocks)
        if (block->is_barrier()) return 0;
    return !net->stack.masked;
}

// Weights to start from, and the rule of every step; each vector may be null but the weights.
void fedarena_load(void* handle, const float* w, const float* velocity, const float* centre, const float* shift,
                   const float* beside, const float* anchor, float momentum, float decay, float mu) {
    auto* net = static_cast<Network*>(handle);
    net->pack(w, net->weights);
    net->pack(velocity, net->velocity);
    net->pack(centre, net->centre);
    net->pack(shift, net->shift);
    net->pack(beside, net->beside);
    net->pack(anchor, net->anchor);
    net->momentum = momentum;
    net->decay = decay;
    net->mu = mu;
}

// Running means and variances, both ways. Every step counts one batch; counting is left to the caller.
void fedarena_load_buffers(void* handle, const float* buffers) {
    for (auto& block : static_cast<Network*>(handle)->blocks)
        for (auto* values : {&block->norm.running_mean, &block->norm.running_var})
            for (float& value : *values) value = *buffers++;
}
void fedarena_save_buffers(void* handle, float* buffers) {
    for (auto& block : static_cast<Network*>(handle)->blocks)
        for (auto* values : {&block->norm.running_mean, &block->norm.running_var})
            for (float value : *values) *buffers++ = value;
}

// Steps over batches of these sizes, rows of the data (and labels) in this order; the mean loss of each goes to `losses`.
// Rows are floats, or bytes with a table of 256 numbers for each of their channels. Returns how many steps were done:
// fewer where a batch is too small for a batch norm. `masks` say what is dropped, step by step; null where nothing is.
int fedarena_train(void* handle, const void* x, const float* tables, int channels, int pixels, const void* labels,
                   const float* row_weights, const int64_t* order, const float* class_weights, int normalise,
                   const int32_t* sizes, const float* rates, int steps, double* losses, const float* masks) {
    auto* net = static_cast<Network*>(handle);
    Plan plan{Rows(x, tables, channels, pixels), labels, row_weights, order, class_weights, normalise != 0, sizes,
              rates, steps, masks, net->stack.masked};
    return net->train(plan, steps, losses);
}

// Several clients one after the other, each from what was loaded: client k makes `counts[k]` steps on the next rows of
// `order`, and its weights go to `after`, in torch's order, one client behind the other.
int fedarena_train_each(void* handle, const void* x, const float* tables, int channels, int pixels,
                        const void* labels, const float* row_weights, const int64_t* order,
                        const float* class_weights, int normalise,
                        const int32_t* sizes, const float* rates, const int32_t* counts, int clients, double* losses,
                        float* after, size_t apart) {
    auto* net = static_cast<Network*>(handle);
    int steps = std::accumulate(counts, counts + clients, 0);
    Plan plan{Rows(x, tables, channels, pixels), labels, row_weights, order, class_weights, normalise != 0, sizes,
              rates, steps};
    Buffer start, still;
    start.copy(net->weights, net->size);
    if (net->velocity.is_there) still.copy(net->velocity.numbers, net->size);
    for (int k = 0; k < clients; k++) {
        std::memcpy(net->weights, start, net->size * sizeof(float));
        if (net->velocity.is_there) std::memcpy(net->velocity.numbers, still, net->size * sizeof(float));
        if (net->train(plan, counts[k], losses) < counts[k]) return k;
        net->unpack(net->weights, after + k * apart);
        losses += counts[k];
    }
    return clients;
}

int fedarena_classes(void* handle) { return static_cast<Network*>(handle)->classes; }

// The logits of so many rows at the loaded weights and buffers.
void fedarena_predict(void* handle, const void* x, const float* tables, int channels, int pixels, int count,
                      float* logits) {
    static_cast<Network*>(handle)->predict(Rows(x, tables, channels, pixels), count, logits);
}

// For each client the order in which its rows come: `epochs` permutations from the stream of (key..., client), as numbers
// of rows of the data set; client k owns rows[bounds[k]] to rows[bounds[k + 1]].
void fedarena_orders(const uint32_t* key, int words, const int64_t* rows, const int64_t* bounds,
                     const int64_t* clients, int count, int epochs, int64_t* to) {
    std::vector<uint32_t> whole(key, key + words);
    whole.push_back(0);
    for (int i = 0; i < count; i++) {
        whole[words] = (uint32_t)clients[i];
        const int64_t* mine = rows + bounds[clients[i]];
        int n = (int)(bounds[clients[i] + 1] - bounds[clients[i]]);
        Stream stream(whole.data(), words + 1);
        for (int e = 0; e < epochs; e++, to += n) {
            stream.permutation(to, n);
            for (int j = 0; j < n; j++) to[j] = mine[to[j]];
        }
    }
}

// The first number from 0 to 1 of each client's stream.
void fedarena_uniforms(const uint32_t* key, int words, const int64_t* clients, int count, double* to) {
    std::vector<uint32_t> whole(key, key + words);
    whole.push_back(0);
    for (int i = 0; i < count; i++) {
        whole[words] = (uint32_t)clients[i];
        to[i] = Stream(whole.data(), words + 1).uniform();
    }
}

void fedarena_save(void* handle, float* w, float* velocity) {
    auto* net = static_cast<Network*>(handle);
    net->unpack(net->weights, w);
    if (velocity && net->velocity.is_there) net->unpack(net->velocity.numbers, velocity);
}

void fedarena_add(double* total, const float* x, size_t count, double factor) { add_scaled(total, x, count, factor); }

int fedarena_all_finite(const float* x, size_t count) { return all_finite(x, count); }

}  // extern "C"
