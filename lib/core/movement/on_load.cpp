#include "core/movement/on_load.h"

#include <algorithm>

namespace stagehand::core {

bool has_on_load(Registry& registry, const Unit& unit) {
    return std::ranges::any_of(registry.blocks_of(unit),
                               [](const Block& block) { return block.id && block.detail->on_load; });
}

Status call_on_load(Registry& registry, Unit& unit, std::span<const Load::Range> ranges, sh_stream stream) {
    for (const Block& block : registry.blocks_of(unit)) {
        if (!block.id || !block.detail->on_load) continue;
        const uint64_t begin = block.address - unit.address, end = begin + block.bytes;
        for (const Load::Range& range : ranges) {
            const uint64_t from = std::max(begin, range.offset), to = std::min(end, range.offset + range.bytes);
            if (from >= to) continue;
            sh_loaded_range loaded = {};
            loaded.struct_size = sizeof loaded;
            loaded.block = block.id;
            loaded.address = reinterpret_cast<void*>(unit.address + from);
            loaded.offset = from - begin;
            loaded.bytes = to - from;
            loaded.block_bytes = block.bytes;
            loaded.stream = stream;
            int32_t result = -1;
            try {
                result = block.detail->on_load(&loaded, block.detail->user_data);
            } catch (...) {
                return Status(SH_ERROR_CALLBACK, registry.name_of(block) + ": on_load threw a C++ exception");
            }
            if (result != 0)
                return Status(SH_ERROR_CALLBACK,
                              registry.name_of(block) + ": on_load returned " + std::to_string(result));
        }
    }
    return Status();
}

}  // namespace stagehand::core
