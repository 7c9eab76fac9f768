// Tables of text, aligned in columns.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "terminal.h"

namespace stagehand::cli {

enum class Align { left, right };

struct Column {
    std::string title;
    Align align = Align::left;
};

// A table with a header row. Each cell is one line of UTF-8.
class Table {
public:
    Table(std::initializer_list<Column> columns) : columns_(columns) {}

    void add(std::vector<std::string> cells);
    // Adds a horizontal line before the next row.
    void rule();
    std::string text(const Terminal& terminal) const;

private:
    struct Row {
        std::vector<std::string> cells;
        bool rule = false;
    };

    std::string line(const Terminal& terminal, const std::vector<std::string>& cells,
                     const std::vector<std::size_t>& widths, Ink ink) const;

    std::vector<Column> columns_;
    std::vector<Row> rows_;
};

// A list of facts. Each has a label, a figure, and a remark.
class Facts {
public:
    void add(std::string label, std::string figure, std::string remark = {}, Ink ink = Ink::plain);
    std::string text(const Terminal& terminal) const;

private:
    struct Fact {
        std::string label;
        std::string figure;
        std::string remark;
        Ink ink;
    };

    std::vector<Fact> facts_;
};

// Columns that `text` takes on a terminal.
std::size_t display_width(const std::string& text);

// `text` padded with spaces to `width` columns.
std::string padded(const std::string& text, std::size_t width, Align align);

// `text` shortened to `width` columns by leaving out its middle.
std::string shortened(const std::string& text, std::size_t width);

}  // namespace stagehand::cli
