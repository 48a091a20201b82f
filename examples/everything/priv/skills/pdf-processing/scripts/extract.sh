#!/bin/sh
# The text of a PDF file, on stdout. Needs poppler-utils.
exec pdftotext -layout -- "$1" -
