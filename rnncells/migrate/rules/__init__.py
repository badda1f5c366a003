"""The rules of the codemod: what each looks for and how it edits the code."""
