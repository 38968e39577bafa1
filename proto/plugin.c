/* plugin.c - see plugin.h */
#include "plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GW_PLUGIN_DIR
#error "the Makefile says where plugins are installed"
#endif

enum { PATH_BYTES = PATH_MAX + 64 };

/* The folder of the object that this code is part of, without a final '/'. */
static int own_folder(char *folder, size_t folder_bytes) {
    static const char here = 0;
    Dl_info info;
    ssize_t n;
    char *slash;

    if (dladdr(&here, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/') {
        snprintf(folder, folder_bytes, "%s", info.dli_fname);
    } else { /* the program itself: the linker knows it by the name it was called by */
        n = readlink("/proc/self/exe", folder, folder_bytes - 1);
        if (n < 0)
            return -1;
        folder[n] = '\0';
    }
    slash = strrchr(folder, '/');
    if (slash == NULL)
        return -1;
    *slash = '\0';
    return 0;
}

/* Remembers the first reason: the loader's, of a file that is there, before "no such file". */
static void *try_open(const char *path, char *text, size_t text_bytes) {
    void *library;

    if (access(path, F_OK) != 0) {
        if (text[0] == '\0')
            snprintf(text, text_bytes, "there is no %s", path);
        return NULL;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        snprintf(text, text_bytes, "%s", dlerror());
    return library;
}

static void *open_plugin(const char *file, char *text, size_t text_bytes) {
    static const char *const beside[] = {"gradwire", "../lib/gradwire", NULL};
    const char *named = secure_getenv("GRADWIRE_PLUGIN_DIR");
    char folder[PATH_MAX], path[PATH_BYTES];
    void *library = NULL;

    text[0] = '\0';
    if (named != NULL && named[0] != '\0') {
        snprintf(path, sizeof(path), "%.*s/%s", PATH_MAX / 2, named, file);
        return try_open(path, text, text_bytes);
    }
    for (size_t i = 0; beside[i] != NULL && library == NULL && own_folder(folder, sizeof(folder)) == 0; i++) {
        snprintf(path, sizeof(path), "%.*s/%s/%s", PATH_MAX / 2, folder, beside[i], file);
        library = try_open(path, text, text_bytes);
    }
    snprintf(path, sizeof(path), "%s/%s", GW_PLUGIN_DIR, file);
    return library != NULL ? library : try_open(path, text, text_bytes);
}

void *gw_plugin_symbol(const char *file, const char *symbol, char *text, size_t text_bytes) {
    void *library = open_plugin(file, text, text_bytes), *address;

    if (library == NULL)
        return NULL;
    address = dlsym(library, symbol);
    if (address == NULL)
        snprintf(text, text_bytes, "%s has no %s: it belongs to another version", file, symbol);
    return address;
}
