#include "transfer/source/reader.h"

#include <cstring>
#include <exception>
#include <string>

#include "base/no_throw.h"
#include "transfer/source/file_reader.h"
#include "transfer/source/mapped_reader.h"
#include "transfer/source/packed_reader.h"

namespace stagehand::transfer {
namespace {

std::string range_text(const ReadRequest& request) {
    return std::to_string(request.bytes) + " bytes at offset " + std::to_string(request.offset) + " of a source of " +
           std::to_string(request.source->bytes) + " bytes";
}

Status call_fill(const ReadRequest& request) {
    int32_t result = 0;
    try {
        const Source& source = *request.source;
        result = source.fill(request.to, source.file_offset + request.offset, request.bytes, source.user_data);
    } catch (const std::exception& error) {
        return Status(SH_ERROR_CALLBACK,
                      "fill callback threw an exception for " + range_text(request) + ": " + error.what());
    } catch (...) {
        return Status(SH_ERROR_CALLBACK, "fill callback threw an exception for " + range_text(request));
    }
    if (result == 0) return Status();
    return Status(SH_ERROR_CALLBACK,
                  "fill callback returned " + std::to_string(result) + " for " + range_text(request));
}

}  // namespace

Reader::Reader(const ReaderOptions& options) : options_(options) {}
Reader::~Reader() = default;

Status Reader::read(std::span<const ReadRequest> requests) {
    const Status status = no_throw([&] { return read_all(requests); });
    if (!status.ok() && files_) files_->forget();
    return status;
}

Status Reader::read_all(std::span<const ReadRequest> requests) {
    for (const ReadRequest& request : requests) {
        const Source& source = *request.source;
        if (request.bytes > source.bytes || request.offset > source.bytes - request.bytes)
            return Status(SH_ERROR_SOURCE, "a read reaches past the end of its source: " + range_text(request));
        if (request.bytes == 0) continue;
        if (source.packed) {
            if (!packed_) packed_ = std::make_unique<PackedReader>();
            SH_TRY(packed_->read(request, [this](const ReadRequest& plain) { return read_all({&plain, 1}); }));
            continue;
        }
        switch (source.kind) {
            case SH_SOURCE_POINTER:
                std::memcpy(request.to, static_cast<const char*>(source.pointer) + request.offset, request.bytes);
                break;
            case SH_SOURCE_MAPPED:
                if (!mapped_) mapped_ = std::make_unique<MappedReader>(options_.vm_read);
                SH_TRY(mapped_->read(static_cast<const char*>(source.pointer) + request.offset, request.to,
                                     request.bytes));
                break;
            case SH_SOURCE_FILE:
                if (!files_) files_ = std::make_unique<FileReader>(options_);
                files_->add(source, request.offset, request.to, request.bytes);
                break;
            case SH_SOURCE_FILL:
                SH_TRY(call_fill(request));
                break;
            default:
                return Status(SH_ERROR_INTERNAL, "a source has an unknown kind: " + std::to_string(source.kind));
        }
    }
    return files_ ? files_->read() : Status();
}

}  // namespace stagehand::transfer
