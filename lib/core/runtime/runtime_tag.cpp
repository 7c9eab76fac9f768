#include "core/runtime/runtime_tag.h"

#include <bitset>
#include <mutex>
#include <new>

namespace stagehand::core {
namespace {

struct TakenTags {
    std::mutex mutex;
    std::bitset<UINT16_MAX + 1> taken;
    uint16_t last = 0;
};

TakenTags& tags() {
    static auto* const all = new TakenTags;  // never freed: runtimes may be destroyed while the process ends
    return *all;
}

}  // namespace

RuntimeTag::RuntimeTag() {
    TakenTags& all = tags();
    std::lock_guard lock(all.mutex);
    for (uint32_t tried = 0; tried <= UINT16_MAX; tried++) {
        all.last++;
        if (all.last == 0 || all.taken[all.last]) continue;
        all.taken[all.last] = true;
        value_ = all.last;
        return;
    }
    throw std::bad_alloc();
}

RuntimeTag::~RuntimeTag() {
    TakenTags& all = tags();
    std::lock_guard lock(all.mutex);
    all.taken[value_] = false;
}

}  // namespace stagehand::core
