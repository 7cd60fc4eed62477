// numpy's generator for a key of 32-bit words, and the shuffles it makes: np.random.default_rng(key).permutation(n), bit
// for bit, without the fifteen microseconds that one such object takes.
//
// SeedSequence (O'Neill's seed_seq_fe) turns the key into four words of state, PCG64 (O'Neill 2014, XSL-RR output) those
// into random numbers.
#pragma once
#include <cstdint>
#include <utility>

class Stream {
   public:
    Stream(const uint32_t* key, int words) {
        uint32_t pool[4], constant = 0x43b0d7e5;
        auto hashed = [&](uint32_t value) {
            value ^= constant;
            constant *= 0x931e8875;
            value *= constant;
            return value ^ value >> 16;
        };
        auto mix = [](uint32_t x, uint32_t y) {
            uint32_t mixed = 0xca01f9dd * x - 0x4973f715 * y;
            return mixed ^ mixed >> 16;
        };
        for (int i = 0; i < 4; i++) pool[i] = hashed(i < words ? key[i] : 0);
        for (int from = 0; from < 4; from++)
            for (int to = 0; to < 4; to++)
                if (from != to) pool[to] = mix(pool[to], hashed(pool[from]));
        for (int from = 4; from < words; from++)
            for (int to = 0; to < 4; to++) pool[to] = mix(pool[to], hashed(key[from]));
        uint64_t state[4];
        constant = 0x8b51f9dd;
        for (int i = 0; i < 8; i++) {
            uint32_t value = pool[i % 4] ^ constant;
            constant *= 0x58f38ded;
            value *= constant;
            value ^= value >> 16;
            state[i / 2] = i % 2 ? state[i / 2] | (uint64_t)value << 32 : value;
        }
        increment_ = (wide(state[2], state[3]) << 1) | 1;
        state_ = increment_ + wide(state[0], state[1]);
        advance();
    }

    uint64_t next() {
        advance();
        uint64_t folded = (uint64_t)(state_ >> 64) ^ (uint64_t)state_;
        int turn = (int)(state_ >> 122);
        return folded >> turn | folded << (-turn & 63);
    }

    // From 0 to 1, without 1.
    double uniform() { return (double)(next() >> 11) * (1.0 / 9007199254740992.0); }

    // From 0 to `most`, which is above 0: bits enough for it, drawn again while they are more.
    uint32_t at_most(uint32_t most) {
        uint32_t mask = UINT32_MAX >> __builtin_clz(most), value;
        do value = next_half() & mask;
        while (value > most);
        return value;
    }

    void permutation(int64_t* to, int n) {
        for (int i = 0; i < n; i++) to[i] = i;
        for (int i = n - 1; i >= 1; i--) std::swap(to[i], to[at_most((uint32_t)i)]);
    }

   private:
    using Wide = unsigned __int128;
    static Wide wide(uint64_t high, uint64_t low) { return (Wide)high << 64 | low; }
    void advance() { state_ = state_ * wide(0x2360ED051FC65DA4, 0x4385DF649FCCF645) + increment_; }
    uint32_t next_half() {
        if (has_half_) {
            has_half_ = false;
            return half_;
        }
        uint64_t both = next();
        has_half_ = true;
        half_ = (uint32_t)(both >> 32);
        return (uint32_t)both;
    }

    Wide state_, increment_;
    uint32_t half_ = 0;
    bool has_half_ = false;
};
