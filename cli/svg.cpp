#include "svg.h"

#include <fmt/format.h>

namespace stagehand::cli {

namespace {

// `text` for XML. Characters that XML cannot hold (control characters) are left out.
std::string escaped(std::string_view text) {
    std::string result;
    for (const char character : text) {
        switch (character) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                if (static_cast<unsigned char>(character) >= 0x20) result += character;
        }
    }
    return result;
}

std::string listed(const std::vector<Point>& points) {
    std::string text;
    for (const Point& point : points) text += fmt::format("{}{:.1f},{:.1f}", text.empty() ? "" : " ", point.x, point.y);
    return text;
}

}  // namespace

SvgPicture::SvgPicture(double width, double height, std::string_view description, std::string_view style) {
    body_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>\n{3}</style>\n",
        width, height, escaped(description), style);
}

void SvgPicture::line(Point from, Point to, std::string_view style_class) {
    body_ += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style_class,
                         from.x, from.y, to.x, to.y);
}

void SvgPicture::polyline(const std::vector<Point>& points, std::string_view style_class) {
    body_ += fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", style_class, listed(points));
}

void SvgPicture::polygon(const std::vector<Point>& points, std::string_view style_class) {
    body_ += fmt::format("<polygon class=\"{}\" points=\"{}\"/>\n", style_class, listed(points));
}

void SvgPicture::rectangle(Point corner, double width, double height, std::string_view style_class, double radius) {
    body_ +=
        fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{:.1f}\"/>\n",
                    style_class, corner.x, corner.y, width, height, radius);
}

void SvgPicture::circle(Point centre, double radius, std::string_view style_class, std::string_view tip) {
    body_ += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"><title>{}</title></circle>\n",
                         style_class, centre.x, centre.y, radius, escaped(tip));
}

void SvgPicture::text(Point at, std::string_view style_class, std::string_view content) {
    body_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style_class, at.x, at.y,
                         escaped(content));
}

}  // namespace stagehand::cli
