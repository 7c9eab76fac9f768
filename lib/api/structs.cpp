#include "api/structs.h"

namespace stagehand::api {

Status check_size(const void* data, uint32_t told, const KnownSize& known, const char* name) {
    const std::string size = std::string(name) + ".struct_size is " + std::to_string(told);
    if (told < known.least)
        return Status(SH_ERROR_INVALID_STRUCT,
                      size + ", less than the " + std::to_string(known.least) + " bytes of its first version");
    if (told > 65536 || told % known.alignment) return Status(SH_ERROR_INVALID_STRUCT, size + ", which no version has");
    const char* const bytes = static_cast<const char*>(data);
    for (size_t i = known.bytes; i < told; i++)
        if (bytes[i])
            return Status(SH_ERROR_INVALID_STRUCT,
                          size + ", and byte " + std::to_string(i) + ", unknown to this library, is not zero");
    return Status();
}

Status check_count(uint64_t count, const char* name) {
    if (count <= kMostElements) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, std::string(name) + " is " + std::to_string(count) +
                                                 ", and an array has at most " + std::to_string(kMostElements) +
                                                 " elements");
}

}  // namespace stagehand::api
