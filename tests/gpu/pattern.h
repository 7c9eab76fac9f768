// Recognisable contents for device memory, and programs of the device that write them and count different words. The
// programs exist as PTX, which a driver translates, and as functions for memory that the host reaches.
#pragma once

#include <cstdint>

namespace stagehand::test {

// Returns the i-th word of the contents. All contents differ, and so do all places of one of them.
inline uint64_t pattern_word(uint64_t contents, uint64_t i) {
    const uint64_t word = (contents * 0xd1342543de82ef95u + i) * 0x9e3779b97f4a7c15u;
    return word ^ (word >> 31);
}

inline void write_pattern(void* memory, uint64_t words, uint64_t contents) {
    auto* const to = static_cast<uint64_t*>(memory);
    for (uint64_t i = 0; i < words; i++) to[i] = pattern_word(contents, i);
}

inline uint64_t count_wrong(const void* memory, uint64_t words, uint64_t contents) {
    const auto* const from = static_cast<const uint64_t*>(memory);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < words; i++) wrong += from[i] != pattern_word(contents, i);
    return wrong;
}

// sh_test_write(address, words, contents) and sh_test_check(address, words, contents, counter). The second program adds
// the number of wrong words to the counter. Any number of threads may run them, and each thread takes every n-th word.
constexpr char kPatternProgram[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry sh_test_write(.param .u64 address, .param .u64 words, .param .u64 contents)
{
    .reg .pred %inside;
    .reg .u32 %thread, %of, %block;
    .reg .u64 %at, %words, %contents, %i, %step, %word, %high;

    ld.param.u64 %at, [address];
    ld.param.u64 %words, [words];
    ld.param.u64 %contents, [contents];
    mul.lo.u64 %contents, %contents, 0xd1342543de82ef95;
    mov.u32 %thread, %tid.x;
    mov.u32 %of, %ntid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %thread, %block, %of, %thread;
    cvt.u64.u32 %i, %thread;
    mov.u32 %block, %nctaid.x;
    mul.lo.u32 %of, %of, %block;
    cvt.u64.u32 %step, %of;
    shl.b64 %word, %i, 3;
    add.u64 %at, %at, %word;
next:
    setp.lt.u64 %inside, %i, %words;
    @!%inside bra done;
    add.u64 %word, %contents, %i;
    mul.lo.u64 %word, %word, 0x9e3779b97f4a7c15;
    shr.u64 %high, %word, 31;
    xor.b64 %word, %word, %high;
    st.global.u64 [%at], %word;
    add.u64 %i, %i, %step;
    shl.b64 %high, %step, 3;
    add.u64 %at, %at, %high;
    bra next;
done:
    ret;
}

.visible .entry sh_test_check(.param .u64 address, .param .u64 words, .param .u64 contents, .param .u64 counter)
{
    .reg .pred %inside, %alike;
    .reg .u32 %thread, %of, %block;
    .reg .u64 %at, %words, %contents, %i, %step, %word, %high, %found, %wrong, %counter;

    ld.param.u64 %at, [address];
    ld.param.u64 %words, [words];
    ld.param.u64 %contents, [contents];
    ld.param.u64 %counter, [counter];
    mul.lo.u64 %contents, %contents, 0xd1342543de82ef95;
    mov.u64 %wrong, 0;
    mov.u32 %thread, %tid.x;
    mov.u32 %of, %ntid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %thread, %block, %of, %thread;
    cvt.u64.u32 %i, %thread;
    mov.u32 %block, %nctaid.x;
    mul.lo.u32 %of, %of, %block;
    cvt.u64.u32 %step, %of;
    shl.b64 %word, %i, 3;
    add.u64 %at, %at, %word;
next:
    setp.lt.u64 %inside, %i, %words;
    @!%inside bra done;
    add.u64 %word, %contents, %i;
    mul.lo.u64 %word, %word, 0x9e3779b97f4a7c15;
    shr.u64 %high, %word, 31;
    xor.b64 %word, %word, %high;
    ld.global.u64 %found, [%at];
    setp.ne.u64 %alike, %found, %word;
    @%alike add.u64 %wrong, %wrong, 1;
    add.u64 %i, %i, %step;
    shl.b64 %high, %step, 3;
    add.u64 %at, %at, %high;
    bra next;
done:
    setp.eq.u64 %alike, %wrong, 0;
    @%alike ret;
    red.global.add.u64 [%counter], %wrong;
    ret;
}
)";

}  // namespace stagehand::test
