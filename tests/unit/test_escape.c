/* test_escape.c - nothing that a client sends can steer a terminal or forge a line of the log */
#include "cunit_main.h"
#include "escape.h"

#include <string.h>

static void check(const char *text, const char *expected) {
    char out[256];
    size_t bytes = gw_escape(text, strlen(text), out, sizeof(out));
    CU_ASSERT_STRING_EQUAL(out, expected);
    CU_ASSERT_EQUAL(bytes, strlen(expected));
}

static void printable_text_stays(void) {
    check("", "");
    check("rank 3 of \"layer.7\" \\ 100%", "rank 3 of \"layer.7\" \\ 100%");
    check("gr\xc3\xb6\xc3\x9f"
          "e \xe2\x88\x91 \xf0\x9f\x8c\x8d",
          "gr\xc3\xb6\xc3\x9f"
          "e \xe2\x88\x91 \xf0\x9f\x8c\x8d");
}

static void control_characters_are_shown_as_numbers(void) {
    check("a\nb", "a\\x0ab");
    check("\033[2J", "\\x1b[2J");
    check("\r\t\x7f", "\\x0d\\x09\\x7f");
    check("\xc2\x9b"
          "31m",
          "\\xc2\\x9b31m"); /* the one-character form of ESC [ */
    check("a\xe2\x80\xae"
          "b",
          "a\\xe2\\x80\\xae"
          "b"); /* turns the direction of writing */
}

static void what_is_no_utf8_is_shown_as_numbers(void) {
    check("\xff", "\\xff");
    check("\xc3", "\\xc3");                            /* cut short */
    check("\xc3(", "\\xc3(");                          /* wrong second byte */
    check("\xc0\x8a", "\\xc0\\x8a");                   /* a newline in two bytes */
    check("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* a surrogate */
    check("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* past the last character */
}

static void what_does_not_fit_ends_in_dots(void) {
    char out[12];
    memset(out, 'x', sizeof(out));
    CU_ASSERT_EQUAL(gw_escape("0123456789", 10, out, 10), 9);
    CU_ASSERT_STRING_EQUAL(out, "012345...");
    CU_ASSERT_EQUAL(gw_escape("012345678", 9, out, 10), 9);
    CU_ASSERT_STRING_EQUAL(out, "012345678");
    CU_ASSERT_EQUAL(gw_escape("\n\n\n", 3, out, 10), 7);
    CU_ASSERT_STRING_EQUAL(out, "\\x0a...");
    CU_ASSERT_EQUAL(gw_escape("01234\xe2\x88\x91", 8, out, 8), 7);
    CU_ASSERT_STRING_EQUAL(out, "0123...");
    CU_ASSERT_EQUAL(out[10], 'x');
    CU_ASSERT_EQUAL(out[11], 'x');
}

static void the_text_may_end_early(void) {
    char out[64];
    CU_ASSERT_EQUAL(gw_escape("abc\0def", 7, out, sizeof(out)), 3);
    CU_ASSERT_STRING_EQUAL(out, "abc");
    CU_ASSERT_EQUAL(gw_escape("abcdef", 2, out, sizeof(out)), 2);
    CU_ASSERT_STRING_EQUAL(out, "ab");
    CU_ASSERT_EQUAL(gw_escape("a\xc3\xb6", 2, out, sizeof(out)), 5);
    CU_ASSERT_STRING_EQUAL(out, "a\\xc3");
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"printable text stays", printable_text_stays},
        {"control characters are shown as numbers", control_characters_are_shown_as_numbers},
        {"what is no UTF-8 is shown as numbers", what_is_no_utf8_is_shown_as_numbers},
        {"what does not fit ends in dots", what_does_not_fit_ends_in_dots},
        {"the text may end early", the_text_may_end_early},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("escape", tests);
}
