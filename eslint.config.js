import js from "@eslint/js";
import globals from "globals";

export default [
  { ...js.configs.recommended, files: ["gpt2np/view/*.js"] },
  { files: ["gpt2np/view/*.js"], languageOptions: { globals: globals.browser } },
];
