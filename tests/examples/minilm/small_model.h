// A small model of the example's kind, with random weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scratch_folder.h"

struct SmallModel {
    int layers = 4;
    int hidden = 64;
    int heads = 4;
    int intermediate = 256;
    int vocabulary = 2000;
    int positions = 64;

    // Shapes of tensors by name; a test may change or drop some before the model is written.
    std::map<std::string, std::vector<std::uint64_t>> shapes;

    SmallModel();

    // Writes all files of the model.
    void write(const ScratchFolder& folder) const;
};

// Returns the bytes of a safetensors file with random F32 tensors.
std::string make_safetensors(const std::map<std::string, std::vector<std::uint64_t>>& shapes);
