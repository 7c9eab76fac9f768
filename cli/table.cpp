#include "table.h"

#include <algorithm>

#include <fmt/format.h>

namespace stagehand::cli {

namespace {

// Whether the byte is the first of a character: every byte that is not a continuation byte.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

std::string trimmed(std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
}

}  // namespace

std::size_t display_width(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string padded(const std::string& text, std::size_t width, Align align) {
    const std::size_t used = display_width(text);
    if (used >= width) return text;
    const std::string space(width - used, ' ');
    return align == Align::left ? text + space : space + text;
}

std::string shortened(const std::string& text, std::size_t width) {
    const std::size_t used = display_width(text);
    if (used <= width || width < 3) return text;
    // Names differ most at their ends, so one third of the result is the beginning and two thirds are the end.
    const std::size_t front = (width - 1) / 3;
    const std::size_t back = width - 1 - front;
    std::string head;
    std::string tail;
    std::size_t character = 0;
    for (const char byte : text) {
        character += begins_character(byte) ? 1 : 0;
        if (character <= front)
            head += byte;
        else if (character > used - back)
            tail += byte;
    }
    return head + "…" + tail;
}

void Table::add(std::vector<std::string> cells) {
    cells.resize(columns_.size());
    rows_.push_back({std::move(cells), false});
}

void Table::rule() { rows_.push_back({{}, true}); }

std::string Table::line(const Terminal& terminal, const std::vector<std::string>& cells,
                        const std::vector<std::size_t>& widths, Ink ink) const {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        text += i == 0 ? "" : "  ";
        text += padded(cells[i], widths[i], columns_[i].align);
    }
    return inked(terminal, ink, trimmed(std::move(text))) + "\n";
}

std::string Table::text(const Terminal& terminal) const {
    std::vector<std::size_t> widths;
    std::vector<std::string> titles;
    for (const Column& column : columns_) {
        titles.push_back(column.title);
        widths.push_back(display_width(column.title));
    }
    for (const Row& row : rows_)
        for (std::size_t i = 0; i < row.cells.size(); ++i) widths[i] = std::max(widths[i], display_width(row.cells[i]));
    std::size_t width = 0;
    for (const std::size_t column : widths) width += column + 2;
    std::string rule;
    for (std::size_t i = 2; i < width; ++i) rule += "─";
    rule = inked(terminal, Ink::dim, rule) + "\n";

    std::string text = line(terminal, titles, widths, Ink::bold) + rule;
    for (const Row& row : rows_) text += row.rule ? rule : line(terminal, row.cells, widths, Ink::plain);
    return legible(terminal, text);
}

void Facts::add(std::string label, std::string figure, std::string remark, Ink ink) {
    facts_.push_back({std::move(label), std::move(figure), std::move(remark), ink});
}

std::string Facts::text(const Terminal& terminal) const {
    std::size_t labels = 0;
    std::size_t figures = 0;
    for (const Fact& fact : facts_) {
        labels = std::max(labels, display_width(fact.label));
        figures = std::max(figures, display_width(fact.figure));
    }
    std::string text;
    for (const Fact& fact : facts_) {
        const std::string figure = padded(fact.figure, fact.remark.empty() ? 0 : figures, Align::left);
        text += "  " + padded(fact.label, labels, Align::left) + "  " + inked(terminal, fact.ink, figure);
        if (!fact.remark.empty()) text += "  " + inked(terminal, Ink::dim, fact.remark);
        text += "\n";
    }
    return legible(terminal, text);
}

}  // namespace stagehand::cli
