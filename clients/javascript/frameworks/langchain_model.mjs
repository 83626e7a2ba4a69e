import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, AIMessageChunk } from "@langchain/core/messages";
import { ChatGenerationChunk } from "@langchain/core/outputs";

/** A model of LangChain that follows a script. */
export class ScriptedModel extends BaseChatModel {
  constructor(script, tool = "search") {
    super({});
    this.script = script;
    this.tool = tool;
  }
  _llmType() {
    return "scripted";
  }
  bindTools() {
    return this;
  }
  answer() {
    const found = this.script.next();
    return {
      content: found.length > 0 ? "" : "done",
      tool_calls: found.map(({ id, q }) => ({ id, name: this.tool, args: { q } })),
    };
  }
  async _generate() {
    const message = new AIMessage(this.answer());
    return { generations: [{ text: "", message }] };
  }
  async *_streamResponseChunks() {
    const { content, tool_calls: found } = this.answer();
    const chunks = found.map(({ id, name, args }, index) => ({
      id,
      name,
      args: JSON.stringify(args),
      index,
      type: "tool_call_chunk",
    }));
    yield new ChatGenerationChunk({
      text: content,
      message: new AIMessageChunk({ content, tool_call_chunks: chunks }),
    });
  }
}
