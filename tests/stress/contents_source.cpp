#include "contents_source.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace stagehand::test {
namespace {

constexpr uint8_t kGuard = 0x5a;

Origin origin_of(Kind kind) {
    switch (kind) {
        case Kind::pageable:
            return Origin::pageable;
        case Kind::file:
            return Origin::file;
        case Kind::fill:
            return Origin::fill;
        case Kind::pinned:
        case Kind::scattered:
        case Kind::touching:
            break;
    }
    return Origin::pinned;
}

}  // namespace

BlockSource::BlockSource(sh_device* device, Kind kind, const Version& contents, uint64_t piece_bytes)
    : device_(device),
      bytes_(contents->bytes.size()),
      piece_(piece_bytes),
      stride_(kind == Kind::touching ? piece_bytes : 2 * piece_bytes) {
    if (kind != Kind::scattered && kind != Kind::touching) {
        whole_ = std::make_unique<Source>(device, origin_of(kind), contents->bytes);
        return;
    }
    memory_bytes_ = stride_ * ((bytes_ + piece_ - 1) / piece_);
    void* memory = nullptr;
    if (sh_host_alloc(device, memory_bytes_, &memory, nullptr) != SH_OK)
        throw std::runtime_error("pinned memory: " + why());
    memory_ = static_cast<uint8_t*>(memory);
    std::memset(memory_, kGuard, memory_bytes_);
    write(contents);
}

BlockSource::~BlockSource() {
    if (memory_) sh_host_free(device_, memory_);
}

std::vector<sh_segment> BlockSource::segments() {
    if (whole_) return {whole_->segment()};
    std::vector<sh_segment> segments;
    for (uint64_t offset = 0; offset < bytes_; offset += piece_) {
        segments.push_back(SH_SEGMENT_INIT);
        segments.back().kind = SH_SOURCE_POINTER;
        segments.back().offset = offset;
        segments.back().bytes = std::min(piece_, bytes_ - offset);
        segments.back().pointer = memory_ + place_of(offset);
    }
    return segments;
}

void BlockSource::write(const Version& contents) {
    if (whole_) return whole_->write(contents->bytes);
    for (uint64_t offset = 0; offset < bytes_; offset += piece_)
        std::memcpy(memory_ + place_of(offset), contents->bytes.data() + offset, std::min(piece_, bytes_ - offset));
}

std::vector<uint8_t> BlockSource::read() const {
    if (whole_) return whole_->read();
    std::vector<uint8_t> bytes(bytes_);
    for (uint64_t offset = 0; offset < bytes_; offset += piece_)
        std::memcpy(bytes.data() + offset, memory_ + place_of(offset), std::min(piece_, bytes_ - offset));
    return bytes;
}

std::string BlockSource::check(const Stamp& wanted) const {
    std::string text = differences(read().data(), wanted);
    for (uint64_t at = 0; at < memory_bytes_; at++) {
        const bool guard = at % stride_ >= piece_ || at / stride_ * piece_ + at % stride_ >= bytes_;
        if (!guard || memory_[at] == kGuard) continue;
        text += "\n    a guard beside its pieces is overwritten at byte " + std::to_string(at);
        break;
    }
    return text;
}

}  // namespace stagehand::test
