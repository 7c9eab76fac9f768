// The few operations of Model.
#include "model.h"

#include "text.h"

namespace stagehand::cli::model {

std::string_view to_string(Format format) { return format == Format::gguf ? "GGUF" : "safetensors"; }

void Model::note(std::string_view key, std::string_view value) {
    if (metadata.size() < metadata_entries) metadata.emplace_back(printable(key), printable(value, 256));
}

}  // namespace stagehand::cli::model
