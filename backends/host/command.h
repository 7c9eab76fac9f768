// Command: an operation that can be queued on a stream. CommandQueue: the queue of a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stagehand/backend.h>

#include "host/record.h"

namespace stagehand::host {

struct Command {
    enum class Kind : uint8_t {
        copy_to_device,
        copy_to_host,
        copy_on_device,
        fill,
        unpack,
        pack_tiles,
        unpack_tiles,
        wait,
        record,
        launch
    };

    Kind kind = Kind::launch;
    uint8_t fill_value = 0;
    uint64_t issued_ns = 0;
    void* to = nullptr;
    const void* from = nullptr;
    uint64_t bytes = 0;
    void (*fn)(void*) = nullptr;
    void* user_data = nullptr;
    int64_t busy_ns = 0;
    std::unique_ptr<const sh_backend_packed> packed;
    std::unique_ptr<const sh_backend_tiles> tiles;
    RecordPointer record;  // the record to complete or to wait for
};

// First in, first out. The queue keeps its memory when it shrinks.
class CommandQueue {
public:
    bool empty() const { return count_ == 0; }

    // Throws std::bad_alloc without a change if no memory is left.
    void push(Command&& command) {
        if (count_ == slots_.size()) grow();
        slots_[(first_ + count_++) & (slots_.size() - 1)] = std::move(command);
    }

    Command pop() {
        Command command = std::move(slots_[first_]);
        first_ = (first_ + 1) & (slots_.size() - 1);
        --count_;
        return command;
    }

private:
    void grow() {
        std::vector<Command> larger(slots_.empty() ? 64 : slots_.size() * 2);
        for (size_t i = 0; i < count_; ++i) larger[i] = std::move(slots_[(first_ + i) & (slots_.size() - 1)]);
        slots_ = std::move(larger);
        first_ = 0;
    }

    std::vector<Command> slots_;  // the size is a power of two
    size_t first_ = 0;
    size_t count_ = 0;
};

}  // namespace stagehand::host
