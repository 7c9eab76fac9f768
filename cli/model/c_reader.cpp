// Shows a model as arrays of C.
#include "c_reader.h"

#include <sys/mman.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "packed_description.h"
#include "read_model.h"

namespace model = stagehand::cli::model;

struct model_reading {
    model::Model model;
    std::string error;
    int system_error = 0;
    bool failed = false;
    std::vector<model_fact> facts;  // of all files, one after the other
    std::vector<model_file> files;
    std::vector<model_tensor> tensors;
};

namespace {

model_text text_of(std::string_view text) { return {text.data(), text.size()}; }

void show_files(model_reading& reading) {
    std::vector<std::size_t> ends;
    for (const model::ModelFile& file : reading.model.files) {
        for (const auto& [key, value] : file.metadata)
            if (key != model::packed_key) reading.facts.push_back({text_of(key), text_of(value)});
        ends.push_back(reading.facts.size());
    }
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
        const model::ModelFile& file = reading.model.files[i];
        reading.files.push_back({text_of(file.path), file.bytes, file.stamp.device, file.stamp.inode,
                                 file.stamp.seconds * 1'000'000'000 + file.stamp.nanoseconds,
                                 reading.facts.data() + begin, ends[i] - begin});
        begin = ends[i];
    }
}

void show_tensors(model_reading& reading) {
    reading.tensors.reserve(reading.model.tensors.size());
    for (const model::Tensor& tensor : reading.model.tensors) {
        reading.tensors.push_back({text_of(tensor.name), text_of(tensor.dtype), tensor.shape.data(),
                                   tensor.shape.size(), tensor.file, tensor.offset, tensor.file_bytes(), tensor.bytes,
                                   tensor.packed_bytes != 0});
    }
}

void read(model_reading& reading, const std::vector<std::string>& paths) {
    try {
        reading.model = model::read_weights(paths);
        show_files(reading);
        show_tensors(reading);
    } catch (const model::ModelError& error) {
        reading.failed = true;
        reading.error = error.what();
        reading.system_error = error.system_error();
    }
}

}  // namespace

extern "C" {

model_reading* model_open(const char* const* paths, uint64_t path_count) {
    try {
        auto reading = std::make_unique<model_reading>();
        read(*reading, std::vector<std::string>(paths, paths + path_count));
        return reading.release();
    } catch (const std::exception&) {  // memory has run out: the readers throw nothing else
        return nullptr;
    }
}

const char* model_error(const model_reading* reading, int32_t* out_error) {
    *out_error = reading->system_error;
    return reading->failed ? reading->error.c_str() : nullptr;
}

const model_file* model_files(const model_reading* reading, uint64_t* out_count) {
    *out_count = reading->files.size();
    return reading->files.data();
}

const model_tensor* model_tensors(const model_reading* reading, uint64_t* out_count) {
    *out_count = reading->tensors.size();
    return reading->tensors.data();
}

void model_close(model_reading* reading) { delete reading; }

void* model_map(int32_t descriptor, uint64_t bytes, int32_t writable, int32_t* out_error) {
    const int rights = PROT_READ | (writable != 0 ? PROT_WRITE : 0);
    // The system reserves memory for all that could be written otherwise, and refuses files larger than its memory.
    void* const mapping = mmap(nullptr, bytes, rights, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    *out_error = mapping == MAP_FAILED ? errno : 0;
    return mapping == MAP_FAILED ? nullptr : mapping;
}

void model_unmap(void* mapping, uint64_t bytes) { munmap(mapping, bytes); }

}  // extern "C"
