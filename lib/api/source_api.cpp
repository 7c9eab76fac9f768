// Packed tensors, for engines that read them on the host.
#include "api/guard.h"
#include "codec/frame.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

// What the caller's bytes are is no matter of its arguments.
Status as_source(const Status& status) {
    return status.code() == SH_ERROR_INVALID_ARGUMENT ? Status(SH_ERROR_SOURCE, status.text()) : status;
}

}  // namespace

extern "C" {

sh_status sh_unpack(const void* packed, uint64_t packed_bytes, uint64_t offset, uint64_t bytes, void* out) {
    return guarded([&] {
        if (!packed) return Status(SH_ERROR_INVALID_ARGUMENT, "packed is NULL");
        if (!out && bytes) return Status(SH_ERROR_INVALID_ARGUMENT, "out is NULL");
        codec::Frame frame;
        SH_TRY(as_source(codec::Frame::open({static_cast<const uint8_t*>(packed), packed_bytes}, &frame)));
        const uint64_t all = frame.contents_bytes();
        if (offset > all || bytes > all - offset)
            return Status(SH_ERROR_INVALID_ARGUMENT,
                          std::to_string(bytes) + " bytes from byte " + std::to_string(offset) +
                              " on end behind the contents of the packed tensor, which are " + std::to_string(all) +
                              " bytes");
        return as_source(frame.unpack(offset, bytes, out));
    });
}

}  // extern "C"
