// RuntimeTags: the runtimes of a device, as tags of a pause.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagehand/occupancy.h>

#include "base/status.h"
#include "core/device/pausables.h"

namespace stagehand::core {

// A tag stands for all runtimes of its name.
class RuntimeTags {
public:
    explicit RuntimeTags(Pausables& runtimes) : runtimes_(runtimes) {}

    // The tags by name, with the figures of their runtimes together. Never waits.
    std::vector<sh_occupancy_info> infos() const;
    // Fails if there is no runtime of the name. Never waits.
    Status info(std::string_view tag, sh_occupancy_info* out) const;

    // Has the runtimes of tags give their memory back, and take it again. While this object lives, none of them goes
    // away.
    class Change {
    public:
        explicit Change(Pausables& runtimes) : session_(runtimes), runtimes_(runtimes) {}

        // On failure those that gave memory back have it again, or the text tells which one has not.
        Status release(std::span<const std::string> tags);
        // On failure none has memory. The engine cannot use it before run().
        Status take(std::span<const std::string> tags);
        // Lets those run that have taken memory.
        void run() noexcept;
        // Undoes release() or take(). Returns an error if one stays as it is.
        Status undo_release();
        void undo_take() noexcept;
        uint64_t bytes() const { return bytes_; }  // that were given back, or taken, since run()

    private:
        std::vector<Pausable*> find(std::span<const std::string> tags, uint32_t state) const;

        Pausables::Session session_;
        Pausables& runtimes_;
        std::vector<Pausable*> changed_;
        uint64_t bytes_ = 0;
    };

private:
    Pausables& runtimes_;
};

}  // namespace stagehand::core
