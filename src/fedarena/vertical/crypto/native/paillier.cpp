// Arithmetic modulo n² on many numbers: products of segments, powers, packing, powers of a fixed base, and the last
// step of an encryption.
//
// Built once for AVX512-IFMA and once for any processor; Python (backends/kernels.py) chooses, prepares constants and
// splits the work among threads. A number is a row of words: its two digits base n, below n, the lowest word first.
// Products come divided by R; constants that are multiplied by a power of R make up for it.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "pairs.h"

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

constexpr int LONGEST = 256;  // rows of a segment; Python cuts longer ones
constexpr int WINDOW = 5;     // bits of an exponent that one product does, where the base is not fixed

struct alignas(64) Line {  // of the cache: an entry should not touch one more than it fills
    Word words[8];
};

// Powers of one base: entry [i][d] is the base to the d 2^(i window).
struct Table {
    int window, windows;
    size_t size;  // of an entry, in lines
    std::vector<Line> entries;
    Table(int window, int windows, size_t words)
        : window(window), windows(windows), size(words / 8), entries(((size_t)windows << window) * size) {}
    const Word* entry(int i, Word digit) const { return entries[(((size_t)i << window) + digit) * size].words; }
    Word* entry(int i, Word digit) { return entries[(((size_t)i << window) + digit) * size].words; }
};

struct Ring {
    virtual ~Ring() = default;
    virtual void products(Word* out, const Word* data, const int32_t* rows, const int64_t* starts, int64_t count) = 0;
    virtual void powers(Word* out, const Word* data, int64_t count, const Word* exponent, int bits) = 0;
    virtual void pack(Word* out, const Word* data, int64_t count, int width, int slots) = 0;
    virtual Table* table(const Word* base, int window, int windows) = 0;
    virtual void fixed(Word* out, const Table& table, const Word* exponents, int words, int64_t count) = 0;
    virtual void encrypt(Word* out, const Word* const* masks, const Word* const* primes, const Word* factors,
                         const Word* plain, int plain_words, int64_t count) = 0;
};

INLINE Word bits_at(const Word* number, int words, int at, int count) {
    int word = at / 64, shift = at % 64;
    Word x = number[word] >> shift;
    if (shift + count > 64 && word + 1 < words) x |= number[word + 1] << (64 - shift);
    return x & ((Word(1) << count) - 1);
}

// One lane's number in limbs.
template <int WORDS>
void single_limbs(Word* out, const Word* words) {
    for (int j = 0; j < limbs_of(WORDS); j++) {
        if constexpr (BITS == 64) out[j] = words[j];
        else out[j] = bits_at(words, WORDS, j * BITS, BITS);
    }
}

template <int WORDS>
struct RingOf final : Ring {
    using Number = Pair<WORDS>;
    static constexpr int L = limbs_of(WORDS), SIZE = Number::SIZE;
    Modulus<WORDS> modulus;
    std::vector<Word> fixes;  // R^k in limbs, for k up to LONGEST
    Number one, one_times_r, r_squared;

    RingOf(const Word* n, const Word* shift, const Word* powers_of_r) : fixes((LONGEST + 1) * (size_t)SIZE) {
        single_limbs<WORDS>(modulus.n, n);
        single_limbs<WORDS>(modulus.shift, shift);
        Word inverse = 1;
        for (int i = 0; i < 6; i++) inverse *= 2 - n[0] * inverse;  // doubles the bits that are right
        modulus.inverse = (0 - inverse) & (~Word(0) >> (64 - BITS));
        for (int k = 0; k <= LONGEST; k++) {
            single_limbs<WORDS>(&fixes[k * (size_t)SIZE], powers_of_r + (size_t)k * 2 * WORDS);
            single_limbs<WORDS>(&fixes[k * (size_t)SIZE + L], powers_of_r + (size_t)k * 2 * WORDS + WORDS);
        }
        one = constant(0), one_times_r = constant(1), r_squared = constant(2);
    }

    Number constant(int power_of_r) const {
        Number x;
        for (int j = 0; j < SIZE; j++) x.digits[j] = all(fixes[power_of_r * (size_t)SIZE + j]);
        return x;
    }

    __attribute__((noinline)) void multiply(Number& out, const Number& x, const Number& y) const {
        ::multiply<WORDS>(out, x, y, modulus);
    }

    __attribute__((noinline)) void square(Number& x) const { ::square<WORDS>(x, x, modulus); }

    void load(Number& out, const Word* const* rows) const {
        Limb words[2 * WORDS];
        gather(words, rows, 2 * WORDS);
        to_limbs<WORDS>(out.first(), words);
        to_limbs<WORDS>(out.second(), words + WORDS);
    }

    void store(Word* const* rows, const Number& x) const {
        Number y = x;
        Limb words[2 * WORDS];
        settle<WORDS>(y, modulus);
        to_words<WORDS>(words, y.first());
        to_words<WORDS>(words + WORDS, y.second());
        scatter(rows, words, 2 * WORDS);
    }

    // Rows from `at` on, one a lane; lanes beyond the last repeat it.
    void load_from(Number& out, const Word* data, int64_t at, int64_t count) const {
        const Word* rows[LANES];
        for (int k = 0; k < LANES; k++) rows[k] = data + std::min(at + k, count - 1) * 2 * WORDS;
        load(out, rows);
    }

    void store_to(Word* data, int64_t at, int64_t count, const Number& x) const {
        Word spare[2 * WORDS], *rows[LANES];
        for (int k = 0; k < LANES; k++) rows[k] = at + k < count ? data + (at + k) * 2 * WORDS : spare;
        store(rows, x);
    }

    // Every lane has a segment of its own and takes the next one when it is done. A segment of k rows begins with R^k,
    // and k products take that away again.
    void products(Word* out, const Word* data, const int32_t* rows, const int64_t* starts, int64_t count) override {
        Number product = one, factor;
        Word spare[2 * WORDS];
        int64_t at[LANES] = {0}, end[LANES] = {0}, segment[LANES], next = 0;
        for (int k = 0; k < LANES; k++) segment[k] = -1;
        for (;;) {
            Word* done[LANES];
            bool is_any_done = false, is_any_left = false;
            for (int k = 0; k < LANES; k++) {
                bool is_done = segment[k] >= 0 && at[k] == end[k];
                done[k] = is_done ? out + segment[k] * 2 * WORDS : spare;
                is_any_done |= is_done;
            }
            if (is_any_done) store(done, product);
            const Word* from[LANES];
            for (int k = 0; k < LANES; k++) {
                if (at[k] == end[k]) {
                    while (next < count && starts[next] == starts[next + 1]) write_one(out + next++ * 2 * WORDS);
                    segment[k] = next < count ? next++ : -1;
                    if (segment[k] >= 0) {
                        at[k] = starts[segment[k]], end[k] = starts[segment[k] + 1];
                        const Word* fix = &fixes[(size_t)(end[k] - at[k]) * SIZE];
                        for (int j = 0; j < SIZE; j++) set_lane(product.digits[j], k, fix[j]);
                    }
                }
                bool is_at_work = segment[k] >= 0;
                from[k] = data + (is_at_work ? (int64_t)rows[at[k]++] : 0) * 2 * WORDS;
                is_any_left |= is_at_work;
                if (is_at_work && at[k] < end[k]) fetch(data + (int64_t)rows[at[k]] * 2 * WORDS, 16 * WORDS);
            }
            if (!is_any_left) return;
            load(factor, from);
            multiply(product, product, factor);
        }
    }

    static void write_one(Word* row) {
        std::fill_n(row, 2 * WORDS, 0);
        row[0] = 1;
    }

    static void fetch(const void* place, int bytes) {
        for (int at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)place + at);
    }

    void powers(Word* out, const Word* data, int64_t count, const Word* exponent, int bits) override {
        std::vector<Number> table(1 << WINDOW);
        int words = (bits + 63) / 64, top = (bits - 1) / WINDOW * WINDOW;
        for (int64_t at = 0; at < count; at += LANES) {
            Number x;
            load_from(x, data, at, count);
            table[0] = one_times_r;
            multiply(table[1], x, r_squared);
            for (int d = 2; d < 1 << WINDOW; d++) multiply(table[d], table[d - 1], table[1]);
            x = table[bits_at(exponent, words, top, WINDOW)];
            for (int place = top - WINDOW; place >= 0; place -= WINDOW) {
                for (int i = 0; i < WINDOW; i++) square(x);
                multiply(x, x, table[bits_at(exponent, words, place, WINDOW)]);
            }
            multiply(x, x, one);
            store_to(out, at, count, x);
        }
    }

    // Horner, from the last slot down: x <- x^(2^width) c.
    void pack(Word* out, const Word* data, int64_t count, int width, int slots) override {
        int64_t packed = (count + slots - 1) / slots;
        Word blank[2 * WORDS] = {1};
        for (int64_t at = 0; at < packed; at += LANES) {
            Number x = one_times_r, c;
            for (int slot = slots - 1; slot >= 0; slot--) {
                const Word* rows[LANES];
                for (int k = 0; k < LANES; k++) {
                    int64_t row = (at + k) * slots + slot;
                    rows[k] = row < count ? data + row * 2 * WORDS : blank;
                }
                if (slot < slots - 1)
                    for (int i = 0; i < width; i++) square(x);
                load(c, rows);
                multiply(c, c, r_squared);
                multiply(x, x, c);
            }
            multiply(x, x, one);
            store_to(out, at, packed, x);
        }
    }

    // Entries of the first window are as they are, the others times R: the product of one of each is then as it is.
    Table* table(const Word* base, int window, int windows) override {
        auto table = std::make_unique<Table>(window, windows, SIZE);
        Number step, x, power;
        load_from(step, base, 0, 1);
        multiply(step, step, r_squared);
        Word size = Word(1) << window;
        for (int i = 0; i < windows; i++) {
            put(*table, i, 0, 1, one_times_r);
            put(*table, i, 1, 1, step);
            for (Word known = 2; known < size; known *= 2) {
                take(power, *table, i, known - 1, 1);
                multiply(power, power, step);
                for (Word d = 0; d < known; d += LANES) {
                    Word some = std::min<Word>(LANES, known - d);
                    take(x, *table, i, d, some);
                    multiply(x, x, power);
                    put(*table, i, known + d, some, x);
                }
            }
            take(power, *table, i, size - 1, 1);
            multiply(step, step, power);
        }
        for (Word d = 0; d < size; d += LANES) {
            Word some = std::min<Word>(LANES, size - d);
            take(x, *table, 0, d, some);
            multiply(x, x, one);
            put(*table, 0, d, some, x);
        }
        return table.release();
    }

    static void take(Number& out, const Table& table, int i, Word first, Word count) {
        const Word* rows[LANES];
        for (int k = 0; k < LANES; k++) rows[k] = table.entry(i, first + std::min<Word>(k, count - 1));
        gather(out.digits, rows, SIZE);
    }

    static void put(Table& table, int i, Word first, Word count, const Number& x) {
        Word spare[SIZE], *rows[LANES];
        for (int k = 0; k < LANES; k++) rows[k] = (Word)k < count ? table.entry(i, first + k) : spare;
        scatter(rows, x.digits, SIZE);
    }

    void fixed(Word* out, const Table& table, const Word* exponents, int words, int64_t count) override {
        for (int64_t at = 0; at < count; at += LANES) {
            Number x, y;
            const Word *exponent[LANES], *rows[LANES];
            for (int k = 0; k < LANES; k++) exponent[k] = exponents + std::min(at + k, count - 1) * words;
            auto entries = [&](int i) {
                for (int k = 0; k < LANES; k++) {
                    rows[k] = table.entry(i, bits_at(exponent[k], words, i * table.window, table.window));
                    fetch(rows[k], 8 * SIZE);
                }
            };
            entries(0);
            gather(x.digits, rows, SIZE);
            if (table.windows > 1) entries(1);
            for (int i = 1; i < table.windows; i++) {
                gather(y.digits, rows, SIZE);
                if (i + 1 < table.windows) entries(i + 1);
                multiply(x, x, y);
            }
            store_to(out, at, count, x);
        }
    }

    // (1 + m n) times the mask that is masks[0] modulo p² and masks[1] modulo q²: the sum of each times a factor that is
    // 1 there and 0 at the other, and R² more.
    void encrypt(Word* out, const Word* const* masks, const Word* const* primes, const Word* factors, const Word* plain,
                 int plain_words, int64_t count) override {
        Number factor[2], x, m;
        Word prime[2][L / 2];
        for (int i = 0; i < 2; i++) {
            const Word* rows[LANES];
            std::fill_n(rows, LANES, factors + (size_t)i * 2 * WORDS);
            load(factor[i], rows);
            single_limbs<WORDS / 2>(prime[i], primes[i]);
        }
        for (int64_t at = 0; at < count; at += LANES) {
            Limb half[2][L];
            for (int i = 0; i < 2; i++) whole_mask(half[i], masks[i], prime[i], at, count);
            Factors<2> first = {{half[0], half[1]}, {factor[0].first(), factor[1].first()}};
            Factors<2> second = {{half[0], half[1]}, {factor[0].second(), factor[1].second()}};
            reduce_pair<WORDS>(x, first, second, modulus);
            load_plain(m, plain, plain_words, at, count);
            multiply(x, x, m);
            store_to(out, at, count, x);
        }
    }

    static void whole_mask(Limb* out, const Word* mask, const Word* prime, int64_t at, int64_t count) {
        const Word* rows[LANES];
        for (int k = 0; k < LANES; k++) rows[k] = mask + std::min(at + k, count - 1) * WORDS;
        Limb words[WORDS], a[L / 2], b[L / 2];
        gather(words, rows, WORDS);
        to_limbs<WORDS / 2>(a, words);
        to_limbs<WORDS / 2>(b, words + WORDS / 2);
        compose<WORDS>(out, a, b, prime);
    }

    // 1 + m n has the digits 1 and m.
    void load_plain(Number& out, const Word* plain, int plain_words, int64_t at, int64_t count) const {
        Word rows_of[LANES][2 * WORDS] = {};
        const Word* rows[LANES];
        for (int k = 0; k < LANES; k++) {
            rows_of[k][0] = 1;
            memcpy(rows_of[k] + WORDS, plain + std::min(at + k, count - 1) * plain_words, 8 * (size_t)plain_words);
            rows[k] = rows_of[k];
        }
        load(out, rows);
    }
};

}  // namespace

// ---- What Python calls ----

// The bits of R for numbers of so many words, or 0 if that size is not offered.
EXPORT int fedarena_radix(int words) {
    for (int known : {8, 16, 24, 32, 48})
        if (known == words) return BITS * limbs_of(words);
    return 0;
}

// Whether this processor can run the build for AVX512-IFMA; asked of the build that runs everywhere.
EXPORT int fedarena_has_ifma() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

EXPORT void* fedarena_ring(int words, const Word* n, const Word* shift, const Word* powers_of_r) {
    switch (words) {
        case 8: return static_cast<Ring*>(new RingOf<8>(n, shift, powers_of_r));
        case 16: return static_cast<Ring*>(new RingOf<16>(n, shift, powers_of_r));
        case 24: return static_cast<Ring*>(new RingOf<24>(n, shift, powers_of_r));
        case 32: return static_cast<Ring*>(new RingOf<32>(n, shift, powers_of_r));
        case 48: return static_cast<Ring*>(new RingOf<48>(n, shift, powers_of_r));
        default: return nullptr;
    }
}

EXPORT void fedarena_ring_free(void* ring) { delete (Ring*)ring; }

EXPORT int fedarena_longest() { return LONGEST; }

EXPORT void fedarena_products(void* ring, Word* out, const Word* data, const int32_t* rows, const int64_t* starts,
                              int64_t count) {
    ((Ring*)ring)->products(out, data, rows, starts, count);
}

EXPORT void fedarena_powers(void* ring, Word* out, const Word* data, int64_t count, const Word* exponent, int bits) {
    ((Ring*)ring)->powers(out, data, count, exponent, bits);
}

EXPORT void fedarena_pack(void* ring, Word* out, const Word* data, int64_t count, int width, int slots) {
    ((Ring*)ring)->pack(out, data, count, width, slots);
}

// Null if there is no memory for it.
EXPORT void* fedarena_table(void* ring, const Word* base, int window, int windows) {
    try {
        return ((Ring*)ring)->table(base, window, windows);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

EXPORT void fedarena_table_free(void* table) { delete (Table*)table; }

EXPORT void fedarena_fixed(void* ring, Word* out, void* table, const Word* exponents, int words, int64_t count) {
    ((Ring*)ring)->fixed(out, *(Table*)table, exponents, words, count);
}

EXPORT void fedarena_encrypt(void* ring, Word* out, const Word* mask_p, const Word* mask_q, const Word* p,
                             const Word* q, const Word* factors, const Word* plain, int plain_words, int64_t count) {
    const Word *masks[2] = {mask_p, mask_q}, *primes[2] = {p, q};
    ((Ring*)ring)->encrypt(out, masks, primes, factors, plain, plain_words, count);
}
