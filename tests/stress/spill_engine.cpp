#include "spill_engine.h"

#include <algorithm>
#include <stdexcept>

#include <gtest/gtest.h>

#include "engine.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kSizes[] = {2000, 4096, 20'000, 65'536, 150'000, 300'000};  // the last ones are packed

// Any two tensors differ in almost every byte.
uint8_t byte_of(uint64_t seed, uint64_t at) { return static_cast<uint8_t>((seed * 0x9e3779b97f4a7c15 >> 32) + at * 7); }

// Work of a stream, which deletes it.
struct StreamWork {
    uint8_t* memory;
    uint64_t bytes, seed;
    std::atomic<uint64_t>*compared, *wrong;
};

void write_on_stream(void* argument) {
    const std::unique_ptr<StreamWork> work(static_cast<StreamWork*>(argument));
    for (uint64_t i = 0; i < work->bytes; i++) work->memory[i] = byte_of(work->seed, i);
}

void compare_on_stream(void* argument) {
    const std::unique_ptr<StreamWork> work(static_cast<StreamWork*>(argument));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < work->bytes; i++) wrong += work->memory[i] != byte_of(work->seed, i);
    ++*work->compared;
    *work->wrong += wrong;
}

}  // namespace

uint8_t* StreamOrderedMemory::take(uint64_t bytes) {
    std::vector<uint8_t*>& free = free_[bytes];
    if (free.empty()) {
        all_.push_back(std::make_unique<uint8_t[]>(bytes));
        return all_.back().get();
    }
    uint8_t* const memory = free.back();
    free.pop_back();
    return memory;
}

SpillEngine::SpillEngine(sh_device* device, const sh_spiller_options& options, uint64_t seed)
    : device_(device), random_(seed) {
    if (sh_stream_create(device_, &stream_) != SH_OK || sh_spiller_create(device_, &options, &spiller_) != SH_OK)
        throw std::runtime_error(why());
}

SpillEngine::~SpillEngine() {
    sh_spiller_destroy(spiller_);
    sh_stream_destroy(device_, stream_);
}

void SpillEngine::launch(void (*work)(void*), void* argument) {
    EXPECT_SUCCEEDS(sh_stream_launch(device_, stream_, work, argument, 0));
}

void SpillEngine::write(uint8_t* memory, uint64_t bytes, uint64_t seed) {
    launch(write_on_stream, new StreamWork{memory, bytes, seed, nullptr, nullptr});
}

void SpillEngine::compare(const uint8_t* memory, uint64_t bytes, uint64_t seed) {
    launch(compare_on_stream, new StreamWork{const_cast<uint8_t*>(memory), bytes, seed, &compared_, &wrong_});
}

void SpillEngine::save(uint64_t bytes, uint64_t key) {
    auto tensor = std::make_unique<Tensor>();
    tensor->seed = next_seed_++;
    tensor->bytes = bytes;
    tensor->memory = memory_.take(bytes);
    write(tensor->memory, bytes, tensor->seed);
    const int64_t size = static_cast<int64_t>(bytes);
    sh_saved_tensor saved = SH_SAVED_TENSOR_INIT;
    saved.element_bytes = 1;
    saved.address = reinterpret_cast<uint64_t>(tensor->memory);
    saved.dimensions = 1;
    saved.sizes = &size;
    saved.storage_key = key;
    saved.used_bytes = 1 + random(1 << 20);
    saved.format = random(4) ? SH_FORMAT_F8_E4M3 : 0;
    constexpr uint32_t kFlags[] = {0, 0, 0, SH_SPILL_NOW, SH_SPILL_KEEP};
    EXPECT_GE(sh_spill(spiller_, &saved, stream_, kFlags[random(std::size(kFlags))], &tensor->ticket), 0) << why();
    tensors_.push_back(std::move(tensor));
}

void SpillEngine::collect(uint32_t flags) {
    sh_ticket tickets[5];
    uint64_t count = 0;
    do {
        EXPECT_SUCCEEDS(sh_spiller_collect(spiller_, stream_, flags, tickets, std::size(tickets), &count));
        for (uint64_t i = 0; i < count; i++) {
            Tensor* const tensor = find(tickets[i]);
            ASSERT_TRUE(tensor && tensor->memory) << "a ticket was named that has no memory to give back";
            memory_.give(std::exchange(tensor->memory, nullptr), tensor->bytes);
        }
    } while (count == std::size(tickets));
}

SpillEngine::Tensor* SpillEngine::find(sh_ticket ticket) {
    for (auto* list : {&tensors_, &kept_on_})
        for (auto& tensor : *list)
            if (tensor && tensor->ticket == ticket) return tensor.get();
    return nullptr;
}

void SpillEngine::prefetch() {
    sh_ticket tickets[4];
    uint64_t addresses[4], count = 0;
    EXPECT_SUCCEEDS(sh_spiller_get_upcoming(spiller_, 0, tickets, std::size(tickets), &count));
    for (uint64_t i = 0; i < count; i++) {
        Tensor* const tensor = find(tickets[i]);
        ASSERT_TRUE(tensor && !tensor->memory) << "a ticket is upcoming that is not away";
        if (!tensor->prefetch) tensor->prefetch = memory_.take(tensor->bytes);
        addresses[i] = reinterpret_cast<uint64_t>(tensor->prefetch);
    }
    EXPECT_SUCCEEDS(sh_prefetch_spilled(spiller_, tickets, addresses, count, stream_));
}

// Restores a tensor, compares it on the stream, and gives the memory back in the order of the stream.
void SpillEngine::use(Tensor& tensor) {
    uint8_t* const into = tensor.prefetch ? std::exchange(tensor.prefetch, nullptr) : memory_.take(tensor.bytes);
    const sh_status status = sh_restore(spiller_, tensor.ticket, reinterpret_cast<uint64_t>(into), stream_);
    EXPECT_GE(status, 0) << why();
    ASSERT_TRUE(status != SH_KEPT || tensor.memory) << "the engine was told to give this memory back";
    compare(status == SH_KEPT ? tensor.memory : into, tensor.bytes, tensor.seed);
    memory_.give(into, tensor.bytes);
}

void SpillEngine::end(Tensor& tensor) {
    EXPECT_SUCCEEDS(sh_ticket_release(spiller_, tensor.ticket));
    EXPECT_EQ(sh_ticket_release(spiller_, tensor.ticket), SH_ERROR_INVALID_HANDLE);
    for (uint8_t* const memory : {tensor.memory, tensor.prefetch})
        if (memory) memory_.give(memory, tensor.bytes);
    tensor.memory = tensor.prefetch = nullptr;
}

void SpillEngine::step(uint64_t tensors) {
    EXPECT_SUCCEEDS(sh_spiller_begin_step(spiller_, number_++));
    for (uint64_t i = 0; i < tensors; i++) {
        save(kSizes[random(std::size(kSizes))], random(4) ? 0 : next_seed_);
        if (random(3)) collect(random(8) ? 0 : SH_COLLECT_ALL);
    }
    collect(SH_COLLECT_ALL);
    // The backward: mostly the reverse order, now and then with jumps, tensors that are used twice, or not at all, and
    // tensors that a later step ends.
    std::reverse(tensors_.begin(), tensors_.end());
    if (random(4) == 0) std::shuffle(tensors_.begin(), tensors_.end(), random_);
    for (auto& tensor : tensors_) {
        if (random(3)) prefetch();
        if (random(16)) use(*tensor);
        if (random(16) == 0) use(*tensor);
        if (random(16) == 0) {
            kept_on_.push_back(std::move(tensor));
            continue;
        }
        end(*tensor);
        tensor->ticket = 0;
    }
    std::erase_if(tensors_, [](const auto& tensor) { return !tensor || !tensor->ticket; });
    while (kept_on_.size() > 8) {
        use(*kept_on_.front());
        end(*kept_on_.front());
        kept_on_.erase(kept_on_.begin());
    }
    EXPECT_SUCCEEDS(sh_spiller_end_step(spiller_));
}

void SpillEngine::finish() {
    for (auto& tensor : kept_on_) {
        use(*tensor);
        end(*tensor);
    }
    kept_on_.clear();
    EXPECT_SUCCEEDS(sh_stream_synchronize(device_, stream_));
}

void SpillEngine::trim() { EXPECT_SUCCEEDS(sh_spiller_trim(spiller_, nullptr)); }

sh_spiller_stats SpillEngine::stats() const {
    auto stats = sh_sized<sh_spiller_stats>();
    EXPECT_SUCCEEDS(sh_spiller_get_stats(spiller_, &stats));
    return stats;
}

}  // namespace stagehand::test
