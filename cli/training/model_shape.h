// The sizes of a transformer from the names and shapes of a model's tensors.
#pragma once

#include "model/model.h"
#include "transformer.h"

namespace stagehand::cli::training {

// Layers, widths and the vocabulary. Files of weights do not tell the width of a head: `heads` does, and 0 stands for
// heads of width 128, or 64 if that does not fit. Throws CommandError if the layers are not those of a transformer
// whose MLP every token uses.
Shape shape_of(const model::Model& model, std::uint64_t heads);

}  // namespace stagehand::cli::training
