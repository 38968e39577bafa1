/* plugin.h - the parts that need a device's driver, loaded only where there is one
 *
 * One package serves hosts with and without GPUs: what links to the driver's library is a shared object of its own. It
 * is looked for in $GRADWIRE_PLUGIN_DIR alone, if set, else in the folder gradwire/ beside the program or library
 * that asks, in ../lib/gradwire seen from there, and where `make install` puts it.
 */
#ifndef GW_PLUGIN_H
#define GW_PLUGIN_H

#include <stddef.h>

/* Loads the plugin `file` and gives the address of its `symbol`; it stays loaded. NULL: `text` says why.
 * Thread: any.  Blocking: reads files. */
void *gw_plugin_symbol(const char *file, const char *symbol, char *text, size_t text_bytes);

#endif
