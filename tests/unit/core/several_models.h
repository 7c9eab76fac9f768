// Code that tests of several models on one device share.
#pragma once

#include <algorithm>

#include "engine.h"

namespace stagehand::test {

inline const uint64_t kBlock = 4 * kPage;

// Collects the warnings that the library writes while the object lives.
class Warnings {
public:
    Warnings() { ignore(sh_set_log(SH_LOG_WARNING, &Warnings::note, this)); }
    ~Warnings() { ignore(sh_set_log(0, nullptr, nullptr)); }
    bool any_with(const std::string& part) {
        std::lock_guard lock(mutex_);
        return std::any_of(lines_.begin(), lines_.end(),
                           [&](const std::string& line) { return line.find(part) != std::string::npos; });
    }

private:
    static void note(int32_t, const char* message, void* self) {
        std::lock_guard lock(static_cast<Warnings*>(self)->mutex_);
        static_cast<Warnings*>(self)->lines_.emplace_back(message);
    }
    std::mutex mutex_;
    std::vector<std::string> lines_;
};

// A model of equal blocks of four pages in forward order.
inline std::unique_ptr<Model> make(TestDevice& device, size_t blocks, const char* name, uint32_t flags = 0) {
    auto model = std::make_unique<Model>(device, equal_blocks(blocks, kBlock, Origin::pinned, flags),
                                         RuntimeSettings{.name = name});
    EXPECT_SUCCEEDS(model->schedule(forward(blocks)));
    return model;
}

inline uint64_t copied(Model& model, int steps = 1) {
    const uint64_t before = model.stats().bytes_to_device;
    for (int k = 0; k < steps; k++) EXPECT_SUCCEEDS(model.step(forward(model.size())));
    return model.stats().bytes_to_device - before;
}

inline uint64_t present(Model& model) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < model.size(); i++) bytes += model.state(i).present_bytes;
    return bytes;
}

}  // namespace stagehand::test
